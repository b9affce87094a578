"""The objects next to the RayJob of a job: network policies and pod monitors."""

from typing import Any

import pytest

from control.plan.rendered_objects import by_kind, make_job

NAME = "kubernetes.io/metadata.name"


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
    url: str, rule: dict[str, Any]
) -> None:
    scorers = f"spec.reward.scorers=[{{name: a, http: {{url: '{url}'}}}}]"
    objects = by_kind(make_job("spec.security.networkPolicy=DefaultDeny", "spec.model.base=/models/m", scorers))
    egress = objects["NetworkPolicy"]["spec"]["egress"][2]
    ports = rule.pop("ports", [])
    assert [port["port"] for port in egress.pop("ports", ())] == ports
    assert egress == rule
    open_ports = ", ".join(f"TCP {port}" for port in ports) if "to" not in rule else "none"
    assert objects["NetworkPolicy"]["metadata"]["annotations"]["diffusionrl.io/open-ports"] == open_ports
