"""Tests of the chart's permissions: exactly what the operator's requests need."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from control.chart.rendered_chart import Body, Render, container, of_kind, operator_pod
from control.plan.rendered_objects import SETTINGS, make_job
from omni_operator import plan
from omni_operator.cluster.kinds import (
    EVENTS,
    JOBS,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    RAYCLUSTERS,
    RAYJOBS,
    TOKEN_REVIEWS,
    WORKLOADS,
    Kind,
    kind_of,
)
from omni_operator.handlers.background import LEASE as CANARY
from omni_operator.handlers.watches import CHILDREN

pytestmark = pytest.mark.cluster

Right = tuple[str, str, str]  # group, resource, verb
NAME = "omni-omni-operator"
PAGE = Path(__file__).parents[3] / "docs" / "operate" / "install.md"
REPORTS = {(TOKEN_REVIEWS.group, TOKEN_REVIEWS.plural, "create")}
NAMESPACED = "--set=watch.namespaces={one,two}"


def rights(kind: Kind, *verbs: str, subresource: str = "") -> set[Right]:
    return {(kind.group, kind.plural + subresource, verb) for verb in verbs}


def applied() -> set[Kind]:
    """Kinds that the operator applies: of a job that makes use of everything."""
    job = make_job("spec.observability.podMonitor.enabled=true")
    return {kind_of(body) for body in plan.render_objects(job, 1, SETTINGS)}


def needed() -> set[Right]:
    """What the operator does in the namespaces that it watches."""
    allowed = rights(JOBS, "get", "delete") | rights(JOBS, "patch", subresource="/status")
    # blockOwnerDeletion needs this on clusters that protect owners.
    allowed |= rights(JOBS, "update", subresource="/finalizers")
    allowed |= rights(RAYJOBS, "delete") | rights(EVENTS, "create")
    allowed |= rights(RAYCLUSTERS, "get", "patch")  # number and template of the rollout pods
    allowed |= rights(POD_DISRUPTION_BUDGETS, "create")  # they go with their RayCluster
    allowed |= rights(WORKLOADS, "list")  # why Kueue has not admitted a job
    for kind in (JOBS, *CHILDREN):
        allowed |= rights(kind, "list", "watch")
    for kind in applied():
        allowed |= rights(kind, "get", "create", "patch")
    return allowed


def own() -> set[Right]:
    """What the operator does in its own namespace: its Leases, and the event of a new leader."""
    return rights(LEASES, "get", "list", "watch", "create", "patch") | rights(EVENTS, "create")


def granted(rules: Iterable[Body]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def by_place(bodies: list[Body]) -> dict[str, set[Right]]:
    """What the account may do by namespace; everywhere: "*". Follows the bindings, as the API server does."""
    roles = {
        (body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]): granted(body["rules"])
        for body in bodies
        if body["kind"] in ("Role", "ClusterRole")
    }
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": "omni-system"}
    by_namespace: dict[str, set[Right]] = {}
    for body in bodies:
        if body["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert body["subjects"] == [account]
            namespace = body["metadata"].get("namespace")
            role = roles[body["roleRef"]["kind"], namespace, body["roleRef"]["name"]]
            by_namespace.setdefault(namespace or "*", set()).update(role)
    return by_namespace


def test_cluster_wide_permissions_match_the_requests(chart: Render) -> None:
    assert by_place(chart()) == {"*": needed() | REPORTS, "omni-system": own()}


def test_the_table_of_permissions_in_the_docs_has_exactly_the_rules() -> None:
    """The row of the watched namespaces: `jobs: get, list; their status: patch; ...`."""
    resources = {
        "jobs": JOBS.plural,
        "their status": f"{JOBS.plural}/status",
        "their finalizers": f"{JOBS.plural}/finalizers",
    }
    table = PAGE.read_text(encoding="utf-8").partition("\n| watched namespaces |")[2].partition("\n| its own")[0]
    told: dict[str, set[str]] = {}
    for row in table.split("\n"):
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        for part in cells[0].split("; "):
            names, _, verbs = part.partition(": ")
            for name in names.split(", "):
                told[resources.get(name, name.lower())] = {*verbs.split(", ")}
    verbs_by_resource: dict[str, set[str]] = {}
    for _, resource, verb in needed():
        verbs_by_resource.setdefault(resource, set()).add(verb)
    assert told == verbs_by_resource


def test_namespaced_permissions_match_the_requests(chart: Render) -> None:
    assert by_place(chart(NAMESPACED)) == {"*": REPORTS, "omni-system": own(), "one": needed(), "two": needed()}
    granted = by_place(chart("--set=watch.namespaces={one,omni-system}"))
    assert granted["omni-system"] == needed() | own()
    assert granted["one"] == needed()


def test_without_reports_there_are_no_cluster_wide_permissions(chart: Render) -> None:
    options = (NAMESPACED, "--set=rbac.aggregate=false,reports.enabled=false")
    bodies = chart(*options)
    assert set(by_place(bodies)) == {"omni-system", "one", "two"}
    assert not [body for body in bodies if body["kind"].startswith("Cluster")]


@pytest.mark.parametrize("options", [(), ("--set=fullnameOverride=other",)])
def test_of_all_leases_in_its_namespace_only_its_own_may_be_changed(chart: Render, options: tuple[str, ...]) -> None:
    bodies = chart(*options)
    env = {item["name"]: item.get("value") for item in container(bodies)["env"]}
    rules = [rule for body in of_kind(bodies, "Role") for rule in body["rules"]]
    (named,) = (rule for rule in rules if "resourceNames" in rule)
    assert granted([named]) == rights(LEASES, "get", "patch")
    assert named["resourceNames"] == [env["OMNI_OPERATOR_LEASE"], CANARY]
    others = granted(rule for rule in rules if "resourceNames" not in rule)
    assert {right for right in others if right[1] == LEASES.plural} == rights(LEASES, "list", "watch", "create")


@pytest.mark.parametrize("options", [(), (NAMESPACED,), ("--set=reports.enabled=false",)])
def test_no_dangerous_permission_is_granted(chart: Render, options: tuple[str, ...]) -> None:
    bodies = chart(*options)
    granted = set().union(*by_place(bodies).values())
    resources = {resource for _, resource, _ in granted}
    assert resources & {"secrets", "pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token"} == set()
    assert {group for group, _, _ in granted} & {"rbac.authorization.k8s.io", "admissionregistration.k8s.io"} == set()
    assert {verb for _, _, verb in granted} & {"*", "escalate", "bind", "impersonate", "deletecollection"} == set()
    assert "*" not in resources | {group for group, _, _ in granted}
    # The only cluster-wide request besides jobs: authentication of a token.
    written = {right for right in granted if right[2] not in ("get", "list", "watch")}
    assert {resource for group, resource, _ in written if group == ""} == set()


def test_the_cluster_roles_view_and_edit_include_jobs(chart: Render) -> None:
    by_name = {body["metadata"]["name"]: body for body in of_kind(chart(), "ClusterRole")}
    view, edit = (by_name[f"{NAME}-omni-system-{role}"] for role in ("view", "edit"))
    label = "rbac.authorization.k8s.io/aggregate-to-"
    assert {name for name in view["metadata"]["labels"] if name.startswith(label)} == {
        f"{label}{role}" for role in ("view", "edit", "admin")
    }
    assert f"{label}view" not in edit["metadata"]["labels"]
    assert {verb for _, _, verb in granted(view["rules"])} == {"get", "list", "watch"}
    assert {group for group, _, _ in granted(edit["rules"])} == {"diffusionrl.io"}
    # Besides jobs, only what drl fetch reads of an attempt.
    others = {right for right in granted(view["rules"]) if right[0] != "diffusionrl.io"}
    assert others == rights(RAYJOBS, "get")
    scale = {verb for _, resource, verb in granted(edit["rules"]) if resource == "diffusionrljobs/scale"}
    assert scale == {"get", "update", "patch"}, "kubectl scale"
    # Only the operator writes the status.
    assert {verb for _, resource, verb in granted(edit["rules"]) if resource.endswith("/status")} == set()


def test_an_existing_service_account_is_used(chart: Render) -> None:
    bodies = chart("--set=serviceAccount.create=false,serviceAccount.name=given,rbac.create=false")
    assert {body["kind"] for body in bodies} == {"CustomResourceDefinition", "Deployment", "Pod", "Service"}
    assert operator_pod(bodies)["spec"]["serviceAccountName"] == "given"
