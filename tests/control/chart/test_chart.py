"""Tests of the chart, rendered by a real Helm: objects and invalid values."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from control.chart.rendered_chart import Body, Given, Render, container, of_kind, one, operator_pod
from e2e import helm as tool
from omni_operator.api.crd import definition
from omni_operator.client.operator_settings import SELECTOR
from omni_operator.cluster.leader.leader_election import LeaseTimes
from omni_operator.plan.pod_policy import PodPolicy
from omni_operator.settings import _READERS, PREFIX, Settings, from_environ

pytestmark = pytest.mark.cluster

CRD = "diffusionrljobs.diffusionrl.io"
# Setting of the operator -> the value that it comes from.
FROM = {
    "IMAGE": ["jobs.image=rollout:1"],
    "KUBERAY_NAMESPACE": ["jobs.kuberayNamespace=ray-system"],
    "RESOURCE_NAMES": ["jobs.resourceNames.NVIDIA=example.com/gpu"],
    "POD_POLICY": ["jobs.podPolicy.runAsRoot=true"],
    "NAMESPACES": ["watch.namespaces={one,two}"],
}


def environ(bodies: list[Body]) -> dict[str, str]:
    fields = {"status.podIP": "10.0.0.7"}
    return {
        item["name"]: item["value"] if "value" in item else fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
        for item in container(bodies)["env"]
    }


def settings(bodies: list[Body]) -> Settings:
    return from_environ(environ(bodies), "omni-system")


def test_default_objects(chart: Render) -> None:
    names = sorted((body["kind"], body["metadata"]["name"]) for body in chart())
    assert names == [
        ("ClusterRole", "omni-omni-operator-omni-system"),
        ("ClusterRole", "omni-omni-operator-omni-system-edit"),
        ("ClusterRole", "omni-omni-operator-omni-system-view"),
        ("ClusterRoleBinding", "omni-omni-operator-omni-system"),
        ("CustomResourceDefinition", CRD),
        ("Deployment", "omni-omni-operator"),
        ("Pod", "omni-omni-operator-test"),
        ("Role", "omni-omni-operator-own"),
        ("RoleBinding", "omni-omni-operator-own"),
        ("Service", "omni-omni-operator"),
        ("ServiceAccount", "omni-omni-operator"),
    ]


def test_the_pod_is_restricted_and_has_a_read_only_file_system(chart: Render) -> None:
    bodies = chart()
    pod = operator_pod(bodies)["spec"]
    only = container(bodies)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in pod
    assert {"requests", "limits"} <= set(only["resources"])


def test_the_deployment_has_one_replica_and_a_grace_period(chart: Render) -> None:
    deployment = one(chart(), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }, "the new pod is ready before the old one stops"
    assert "affinity" not in deployment["spec"]["template"]["spec"]
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings(chart()).stop_seconds


@pytest.mark.parametrize("options", [(), ("--set=nameOverride=other,fullnameOverride=another",)])
def test_drl_finds_the_deployment_by_a_label_that_no_value_changes(options: tuple[str, ...], chart: Render) -> None:
    deployment = one(chart(*options), "Deployment")
    key, _, value = SELECTOR.partition("=")
    assert deployment["metadata"]["labels"][key] == value
    # Selectors of Deployments are immutable: an upgrade of an earlier chart would fail with another one.
    name = "other" if options else "omni-operator"
    assert deployment["spec"]["selector"] == {
        "matchLabels": {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "omni"}
    }


def test_two_replicas_share_a_lease_are_spread_and_are_not_evicted_together(chart: Render) -> None:
    bodies = chart("--set=replicas=2,networkPolicy.enabled=true")
    deployment, budget = one(bodies, "Deployment"), one(bodies, "PodDisruptionBudget")
    labels = operator_pod(bodies)["metadata"]["labels"]
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (spread,) = operator_pod(bodies)["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    assert spread["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert spread["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
    read = settings(bodies)
    assert read.lease == deployment["metadata"]["name"], "two releases in a namespace have two Leases"
    assert read.reports_url == "http://10.0.0.7:8090"
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert (
        operator_pod(chart("--set=replicas=2", f"--set-json=affinity={json.dumps(affinity)}"))["spec"]["affinity"]
        == affinity
    )


def test_a_replica_may_pass_reports_on_to_the_other(chart: Render) -> None:
    bodies = chart("--set=networkPolicy.enabled=true")
    policy = one(bodies, "NetworkPolicy")
    operator_pods = {"podSelector": policy["spec"]["podSelector"]}
    (into,) = (rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "reports")
    (out,) = (rule for rule in policy["spec"]["egress"] if rule["ports"][0]["port"] == "reports")
    assert operator_pods in into["from"]
    assert out["to"] == [operator_pods]


def test_the_lease_passes_to_another_replica_within_the_promised_time(chart: Render) -> None:
    times = LeaseTimes(settings(chart()).lease_seconds)
    assert times.duration + times.request < 15, "after a SIGKILL"
    assert times.request < times.writes < times.duration
    assert times.renewal + 2 * times.request <= times.duration, "a renewal that fails once is no reason"


def test_probes_and_services_use_the_ports_of_the_operator(chart: Render) -> None:
    bodies = chart("--set=metrics.port=9001,reports.port=9002")
    ports = {port["name"]: port["containerPort"] for port in container(bodies)["ports"]}
    read = settings(bodies)
    assert ports == {"metrics": 9001, "reports": 9002}
    assert (read.http_port, read.reports_port) == (9001, 9002)
    paths = {
        probe: container(bodies)[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {name: (get["path"], get["port"]) for name, get in paths.items()} == {
        "startupProbe": ("/healthz", "metrics"),
        "livenessProbe": ("/healthz", "metrics"),
        "readinessProbe": ("/readyz", "metrics"),
    }
    service = one(bodies, "Service")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert service["spec"]["selector"].items() <= operator_pod(bodies)["metadata"]["labels"].items()
    assert read.cluster.report_url == f"http://{service['metadata']['name']}.omni-system.svc:9002"


def test_every_setting_of_the_operator_has_a_value(chart: Render, given: Given) -> None:
    schema = json.loads((tool.CHART / "values.schema.json").read_text())
    tuning = {
        name: part.get("maximum", schema["definitions"]["seconds"]["maximum"])
        for name, part in schema["properties"]["tuning"]["properties"].items()
    }
    options = [f"--set={text}" for texts in FROM.values() for text in texts]
    variables = environ(chart(*options, given({"tuning": tuning, "terminationGracePeriodSeconds": 86400001})))
    assert set(variables) == {PREFIX + name for name in _READERS}
    # Helm reads numbers as floats; the operator expects integers.
    assert from_environ(variables, "omni-system").jobs_shown == 1_000_000


def test_the_chart_has_every_field_of_the_policy_and_the_operators_defaults(chart: Render) -> None:
    schema = json.loads((tool.CHART / "values.schema.json").read_text())
    fields = schema["properties"]["jobs"]["properties"]["podPolicy"]["properties"]
    assert set(fields) == {field.alias for field in PodPolicy.model_fields.values()}
    assert settings(chart()).cluster.pod_policy == PodPolicy()


def test_values_reach_the_operator(chart: Render, given: Given) -> None:
    values = {
        "jobs": {
            "image": "rollout:1",
            "rayVersion": "2.61.0",
            "resourceNames": {"NVIDIA": "example.com/gpu"},
            "podPolicy": {"hostPorts": [8265], "hostPaths": [{"path": "/usr/local/Ascend"}], "secrets": ["hf-*"]},
        },
        "log": {"format": "json", "verbose": True},
        "tuning": {"stallSeconds": 0.5, "passes": 3},
        "reports": {"enabled": False},
    }
    read = settings(chart(given(values)))
    assert read.cluster.image == "rollout:1"
    assert read.cluster.ray_version == "2.61.0"
    assert read.cluster.resource_names == {"NVIDIA": "example.com/gpu", "Ascend": "huawei.com/Ascend910"}
    assert read.cluster.pod_policy == PodPolicy.model_validate(values["jobs"]["podPolicy"])
    assert read.cluster.report_url is None
    assert (read.log_format, read.verbose, read.passes, read.timeouts.stall.total_seconds()) == ("json", True, 3, 0.5)


@pytest.mark.parametrize(
    ("options", "image"),
    [
        ([], f"omni-operator:{version('omni-operator')}"),
        (["--set=image.repository=mirror/omni,image.tag=abc"], "mirror/omni:abc"),
        (["--set=image.tag=abc,image.digest=sha256:" + "0" * 64], "omni-operator@sha256:" + "0" * 64),
    ],
)
def test_the_image_is_a_tag_or_a_digest(chart: Render, options: list[str], image: str) -> None:
    assert container(chart(*options))["image"] == image


def test_the_custom_resource_definition_is_generated_and_survives_an_uninstall(chart: Render) -> None:
    crd = one(chart(), "CustomResourceDefinition")
    metadata = crd.pop("metadata")
    wanted = YAML(typ="safe").load(definition.text())
    del wanted["metadata"]
    assert crd == wanted
    assert metadata["name"] == CRD
    assert metadata["annotations"]["helm.sh/resource-policy"] == "keep"
    # Helm upgrades templates, and never files in `crds/`.
    assert not (tool.CHART / "crds").exists()
    assert of_kind(chart("--set=crds.install=false"), "CustomResourceDefinition") == []


def test_pod_monitor_and_network_policy_are_optional(chart: Render) -> None:
    bodies = chart(
        "--set=metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=prom,networkPolicy.enabled=true"
    )
    monitor = one(bodies, "PodMonitor")
    labels = operator_pod(bodies)["metadata"]["labels"]
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True), "a job's namespace is not the operator's"
    policy = one(bodies, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    outward = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
    assert outward == [53, 53, 443, 6443, "reports"]


def test_labels_that_find_an_object_replace_common_ones_and_no_key_is_twice(chart: Render, given: Given) -> None:
    """A duplicate key is an error to kustomize, and to the parser of this test."""
    labels = {"release": "prometheus", "app.kubernetes.io/part-of": "monitoring"}
    options = {"enabled": True, "labels": labels}
    values = {
        "commonLabels": {"release": "all", "team": "a"},
        "metrics": {"podMonitor": options, "alerts": options, "dashboards": options},
    }
    bodies = chart(given(values))
    for kind, count in (("PodMonitor", 1), ("PrometheusRule", 1), ("ConfigMap", 2)):
        labels_of_objects = [body["metadata"]["labels"] for body in of_kind(bodies, kind)]
        assert len(labels_of_objects) == count
        for object_labels in labels_of_objects:
            assert {**labels, "team": "a"}.items() <= object_labels.items()


def test_a_long_grace_period_is_a_whole_number(chart: Render, given: Given) -> None:
    """Numbers of a file of values are floats to Helm, which writes 1e+06."""
    pod = operator_pod(chart(given({"terminationGracePeriodSeconds": 1_000_000})))
    assert repr(pod["spec"]["terminationGracePeriodSeconds"]) == "1000000"


def test_an_old_cluster_is_refused_with_an_explanation(helm: Path) -> None:
    assert "chart requires kubeVersion: >=1.29.0-0" in tool.refusal(helm, "--kube-version=1.28.0")
