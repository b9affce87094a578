"""The objects next to the RayJob of a job: network policies and pod monitors, and what owns them."""

from __future__ import annotations

from typing import Any

import pytest

from control.plan.rendered_objects import SETTINGS, MakeJob, by_kind, pod
from omni_operator import plan
from omni_operator.api.spec.pod_template import RESERVED_KEYS

NAME = "kubernetes.io/metadata.name"


def test_network_policies(make_job: MakeJob) -> None:
    assert "NetworkPolicy" not in by_kind(make_job("spec.security.networkPolicy=Disabled"))
    spec = by_kind(make_job())["NetworkPolicy"]["spec"]
    assert (spec["policyTypes"], "egress" in spec) == (["Ingress"], False)
    kuberay = spec["ingress"][1]["from"][0]["podSelector"]["matchExpressions"][0]
    at = spec["ingress"][1]["ports"]
    assert (kuberay["values"], at) == (["kuberay", "kuberay-operator"], [{"protocol": "TCP", "port": 8265}])
    # Pods of other jobs have `app.kubernetes.io/name: kuberay`, and the label of their RayCluster, which is reserved.
    others = spec["ingress"][1]["from"][0]["podSelector"]["matchExpressions"][1]
    assert others == {"key": "ray.io/cluster", "operator": "DoesNotExist"}
    assert others["key"].startswith(RESERVED_KEYS)
    job = make_job(
        "spec.security.networkPolicy=DefaultDeny",
        "spec.reward.scorers=[{name: a, http: {url: 'http://judge:9000/x'}}, {name: b, http: {url: 'https://h.example.com'}},"
        " {name: unified_reward, settings: {base_url: 'http://vlm:8000/v1', model: m}}, {name: jpeg}]",
    )
    closed = by_kind(job)["NetworkPolicy"]["spec"]
    ports = [{(port["protocol"], port["port"]) for port in rule.get("ports", ())} for rule in closed["egress"]]
    assert ports == [set(), {("UDP", 53), ("TCP", 53)}, set(), {("TCP", 443)}, set()]
    assert closed["egress"][-1]["to"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "omni-operator"
    }


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://10.1.2.3:9000/x", {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [9000]}),
        ("https://[fd00::1]/x", {"to": [{"ipBlock": {"cidr": "fd00::1/128"}}], "ports": [443]}),
        ("http://judge:9000/x", {"to": [{"podSelector": {}}]}),
        ("http://judge.team-b.svc:9000", {"to": [{"namespaceSelector": {"matchLabels": {NAME: "team-b"}}}]}),
        ("http://a.judge.b.svc.cluster.local", {"to": [{"namespaceSelector": {"matchLabels": {NAME: "b"}}}]}),
        ("http://judge.example.com:5432/x", {"ports": [5432]}),
        ("http://svc.example.com", {"ports": [80]}),
    ],
)
def test_a_server_opens_its_own_address_or_namespace_and_what_is_open_to_all_is_said(
    make_job: MakeJob, url: str, rule: dict[str, Any]
) -> None:
    scorers = f"spec.reward.scorers=[{{name: a, http: {{url: '{url}'}}}}]"
    made = by_kind(make_job("spec.security.networkPolicy=DefaultDeny", "spec.model.base=/models/m", scorers))
    found = made["NetworkPolicy"]["spec"]["egress"][2]
    ports = rule.pop("ports", [])
    assert [port["port"] for port in found.pop("ports", ())] == ports
    assert found == rule
    said = ", ".join(f"TCP {port}" for port in ports) if "to" not in rule else "none"
    assert made["NetworkPolicy"]["metadata"]["annotations"]["diffusionrl.io/open-ports"] == said


def test_a_pod_monitor_is_rendered_if_enabled(make_job: MakeJob) -> None:
    assert "PodMonitor" not in by_kind(make_job())
    wanted = "spec.observability.podMonitor={enabled: true, interval: 5s, labels: {release: p}}"
    body = by_kind(make_job(wanted))["PodMonitor"]
    endpoints = body["spec"]["podMetricsEndpoints"]
    assert [endpoint["port"] for endpoint in endpoints] == ["metrics"]
    assert body["metadata"]["labels"]["release"] == "p"
    assert "honorLabels" not in endpoints[0], "a job's processes cannot claim another namespace"
    targets = {rule["targetLabel"] for rule in endpoints[0]["relabelings"]}
    assert targets.isdisjoint({"namespace", "pod", "replica", "phase"})


def test_a_pod_monitor_selects_the_port_of_kuberay_and_the_pods_of_every_group(make_job: MakeJob) -> None:
    made = by_kind(make_job("spec.observability.podMonitor.enabled=true"))
    selected = made["PodMonitor"]["spec"]["selector"]["matchLabels"]
    cluster = made["RayJob"]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert len(groups) > 1
    for group in groups:
        assert selected.items() <= group["template"]["metadata"]["labels"].items()
    assert [each["port"] for each in made["PodMonitor"]["spec"]["podMetricsEndpoints"]] == ["metrics"]


def test_objects_of_a_job_with_a_uid_have_an_owner(make_job: MakeJob) -> None:
    assert all("ownerReferences" not in body["metadata"] for body in plan.render_objects(make_job(), 1, SETTINGS))
    for body in plan.render_objects(make_job("metadata.uid=u-1"), 1, SETTINGS):
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["kind"]) == ("u-1", True, "DiffusionRLJob")


def test_wandb_gets_its_key_and_its_port(make_job: MakeJob) -> None:
    tracking = "spec.observability.tracking={loggers: [tensorboard, wandb], wandbSecretRef: {name: s, key: k}}"
    job = make_job(tracking, "spec.security.networkPolicy=DefaultDeny")
    made = by_kind(job)
    (worker,) = made["RayJob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    env = {entry["name"]: entry for entry in pod(worker)["containers"][0]["env"]}
    assert env["WANDB_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "s", "key": "k"}}
    ports = [port["port"] for rule in made["NetworkPolicy"]["spec"]["egress"] for port in rule.get("ports", ())]
    assert 443 in ports
