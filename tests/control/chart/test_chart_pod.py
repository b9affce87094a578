"""Tests of the operator's pod as the chart renders it, with values of a cluster's admin, and of `helm test`."""

import importlib.util
from pathlib import Path

import pytest

from control.chart.rendered_chart import Body, Given, Render, container, one, operator_pod
from e2e import helm as tool
from e2e.cluster import deadlines
from e2e.cluster.processes import run
from omni_operator.api.spec.pod_schema import find_errors

pytestmark = pytest.mark.cluster


def test_the_chart_has_no_warning(helm: Path) -> None:
    output = run([str(helm), "lint", "--strict", str(tool.CHART)], deadline=deadlines.COMMAND)
    assert "1 chart(s) linted, 0 chart(s) failed" in output
    assert "WARNING" not in output


def test_where_the_pod_runs_is_as_given(chart: Render, given: Given) -> None:
    spread = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    with_selector = {**spread, "labelSelector": {"matchLabels": {"team": "a"}}}
    values = {
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [spread, with_selector],
        "priorityClassName": "system-cluster-critical",
    }
    bodies = chart(given(values))
    pod = operator_pod(bodies)["spec"]
    for name in ("nodeSelector", "tolerations", "priorityClassName"):
        assert pod[name] == values[name], name
    first, second = pod["topologySpreadConstraints"]
    assert first == {**spread, "labelSelector": one(bodies, "Deployment")["spec"]["selector"]}
    assert second == with_selector
    assert not {*values} & {*operator_pod(chart())["spec"]}


def test_variables_volumes_and_mounts_are_added(chart: Render, given: Given) -> None:
    values = {
        "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.crt"}],
        "extraEnvFrom": [{"configMapRef": {"name": "proxy"}}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    }
    bodies = chart(given(values))
    only = container(bodies)
    assert only["env"][-1] == values["extraEnv"][0]
    assert only["envFrom"] == values["extraEnvFrom"]
    assert only["volumeMounts"] == values["extraVolumeMounts"]
    assert operator_pod(bodies)["spec"]["volumes"] == values["extraVolumes"]
    names = [item["name"] for item in only["env"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_without_fixed_users_the_platform_chooses_them(chart: Render, kind: str) -> None:
    bodies = chart("--set=podSecurityContext.runAsUser=null,podSecurityContext.runAsGroup=null")
    pod = operator_pod(bodies)["spec"] if kind == "Deployment" else one(bodies, kind)["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (only,) = pod["containers"]
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_security_contexts_can_be_left_out(chart: Render) -> None:
    pod = operator_pod(chart("--set=podSecurityContext=null,securityContext=null"))["spec"]
    assert "securityContext" not in pod
    assert "securityContext" not in pod["containers"][0]


EVERYTHING = {**tool.POD_VALUES, "priorityClassName": "high", "podAnnotations": {"a": "b"}, "podLabels": {"a": "b"}}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_pods_follow_the_schema_of_kubernetes(chart: Render, given: Given, values: Body) -> None:
    """The schema of pod templates that the operator ships: no unknown field, types, required fields, unique names."""
    bodies = chart(given(values))
    for template in (operator_pod(bodies), one(bodies, "Pod")):
        pod = {"metadata": {**template["metadata"], "name": "pod"}, "spec": template["spec"]}
        assert [f"{error.at}: {error.text}" for error in find_errors(pod, complete=True)] == []


def test_a_wrong_field_of_an_added_volume_is_found(chart: Render, given: Given) -> None:
    values = {"extraVolumes": [{"name": "v", "emptyDr": {}}]}
    (error,) = find_errors(operator_pod(chart(given(values))), complete=True)
    assert error.at == ("spec", "volumes", 0, "emptyDr")


def test_helm_test_asks_the_operator_through_its_service(chart: Render) -> None:
    bodies = chart("--set=metrics.port=9001,networkPolicy.enabled=true", "--set-json=networkPolicy.metricsFrom=[{}]")
    pod = one(bodies, "Pod")
    service = one(bodies, "Service")
    (only,) = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert only["args"] == [f"http://{service['metadata']['name']}.omni-system.svc:9001"]
    assert {"name": "metrics", "port": 9001, "targetPort": "metrics"} in service["spec"]["ports"]
    _, _, module = only["command"]
    assert only["command"] == ["python", "-m", module]
    assert importlib.util.find_spec(module) is not None
    assert only["image"] == container(bodies)["image"], "no other image needs to be pulled"
    assert all(set(only["resources"][kind]) == {"cpu", "memory"} for kind in ("requests", "limits")), "for quotas"
    assert pod["spec"]["securityContext"] == operator_pod(bodies)["spec"]["securityContext"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    # Neither the Service nor the Deployment may select this pod; the network policy lets it in.
    labels = pod["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= labels.items()
    peers = one(bodies, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert any(peer.get("podSelector", {}).get("matchLabels", {}).items() <= labels.items() for peer in peers if peer)
