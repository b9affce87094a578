"""The chart where something is missing or wrong: a clear message, and nothing half-installed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import helm
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import CommandFailed
from e2e.operator_process import ROOT, install_kuberay

pytestmark = pytest.mark.cluster

SYSTEM = "omni-system"
NAME = "omni-omni-operator"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/diffusionrljobs.diffusionrl.io"
KINDS = {
    "serviceaccounts": f"/api/v1/namespaces/{SYSTEM}/serviceaccounts",
    "services": f"/api/v1/namespaces/{SYSTEM}/services",
    "deployments": f"/apis/apps/v1/namespaces/{SYSTEM}/deployments",
    "roles": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/roles",
    "rolebindings": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/rolebindings",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
NAMESPACED = ("--set=watch.namespaces={omni-system}", "--set=reports.enabled=false,rbac.aggregate=false")


@pytest.fixture
def api(empty: ControlPlane) -> Iterator[Api]:
    with empty.api() as client:
        yield client


def run_helm(program: Path, kubeconfig: Path, *arguments: str) -> str:
    return helm.on_cluster(program, kubeconfig, [*arguments, f"--namespace={SYSTEM}"], deadlines.ADDONS_READY)


def install(program: Path, kubeconfig: Path, *options: str) -> str:
    return run_helm(program, kubeconfig, "install", "omni", str(helm.CHART), *options)


def refusal(program: Path, kubeconfig: Path, *options: str) -> str:
    """What Helm says when it does not install the chart."""
    with pytest.raises(CommandFailed) as caught:
        install(program, kubeconfig, *options)
    return str(caught.value)


def left(api: Api) -> set[tuple[str, str]]:
    """Objects of the chart that are there."""
    return {
        (kind, item["metadata"]["name"])
        for kind, path in KINDS.items()
        for item in api.get(path)["items"]
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == "omni"
    }


def create_namespace(plane: ControlPlane, api: Api, name: str = SYSTEM) -> None:
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    plane.await_account(name)


def test_what_the_cluster_lacks_is_named_and_nothing_is_installed(program: Path, empty: ControlPlane, api: Api) -> None:
    """Without Prometheus' operator, with a misspelt value, and with a definition that another tool installed."""
    text = refusal(program, empty.kubeconfig, "--create-namespace", "--set=metrics.podMonitor.enabled=true")
    assert 'no matches for kind "PodMonitor" in version "monitoring.coreos.com/v1"' in text
    assert "ensure CRDs are installed first" in text
    assert api.gone(f"/api/v1/namespaces/{SYSTEM}")
    assert "additional properties 'replica' not allowed" in refusal(program, empty.kubeconfig, "--set=replica=2")
    assert (api.gone(CRD), left(api)) == (True, set())
    empty.kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    create_namespace(empty, api)
    text = refusal(program, empty.kubeconfig)
    assert 'CustomResourceDefinition "diffusionrljobs.diffusionrl.io"' in text
    assert "invalid ownership metadata" in text
    assert left(api) == set()
    notes = install(program, empty.kubeconfig, "--take-ownership", "--wait")
    assert "KubeRay is not installed: until you install it, jobs wait with the reason KubeRayNotInstalled" in notes
    assert {"deployments", "clusterroles", "services"} <= {kind for kind, _ in left(api)}


def test_an_admin_of_a_namespace_is_told_which_right_is_missing_and_nothing_stays(
    program: Path, empty: ControlPlane, api: Api
) -> None:
    create_namespace(empty, api)
    install_kuberay(empty)
    user = empty.kubeconfig_of("nina")
    empty.kubectl("create", "rolebinding", "nina", "--clusterrole=admin", "--user=nina", f"--namespace={SYSTEM}")
    text = refusal(program, user, "--atomic")
    assert 'User "nina" cannot get resource "customresourcedefinitions"' in text
    assert left(api) == set()
    text = refusal(program, empty.kubeconfig, "--atomic", "--set=crds.install=false,watch.namespaces={nowhere}")
    assert 'namespaces "nowhere" not found' in text
    assert left(api) == set()
    # Even in one namespace only, a user may not grant what they do not have.
    text = refusal(program, user, "--atomic", "--set=crds.install=false", *NAMESPACED)
    assert "attempting to grant RBAC permissions not currently held" in text
    assert "has been uninstalled due to atomic being set" in text
    assert left(api) == set()
    # A cluster's admin installs the definition and the roles; the rest needs no more than the namespace.
    empty.kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    install(program, user, "--atomic", "--set=crds.install=false,rbac.create=false", *NAMESPACED)
    assert {kind for kind, _ in left(api)} == {"serviceaccounts", "services", "deployments"}


def test_an_upgrade_keeps_given_values_and_takes_new_defaults(
    program: Path, empty: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """With `--reset-then-reuse-values`, as docs/operate/install.md says; `--reuse-values` would keep old defaults."""
    install(program, empty.kubeconfig, "--create-namespace", "--set=tuning.passes=3")
    newer = tmp_path / "newer"
    shutil.copytree(helm.CHART, newer)
    path = newer / "values.yaml"
    text = path.read_text()
    assert "format: full\n" in text
    path.write_text(text.replace("format: full\n", "format: json\n"))

    def settings() -> dict[str, str]:
        (deployment,) = api.get(KINDS["deployments"])["items"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return {item["name"]: item["value"] for item in container["env"] if "value" in item}

    upgrade = ("upgrade", "omni", str(newer))
    run_helm(program, empty.kubeconfig, *upgrade, "--reuse-values")
    assert settings()["OMNI_OPERATOR_LOG_FORMAT"] == "full"
    run_helm(program, empty.kubeconfig, *upgrade, "--reset-then-reuse-values")
    assert settings()["OMNI_OPERATOR_LOG_FORMAT"] == "json"
    assert settings()["OMNI_OPERATOR_PASSES"] == "3"


def test_an_upgrade_to_a_namespace_that_is_not_there_takes_rights_away_unless_it_is_atomic(
    program: Path, empty: ControlPlane, api: Api
) -> None:
    """Helm changes the ClusterRole before it finds that a Role cannot be created."""
    install(program, empty.kubeconfig, "--create-namespace")
    role = f"{KINDS['clusterroles']}/{NAME}-{SYSTEM}"
    rules = api.get(role)["rules"]

    def upgrade(*options: str) -> str:
        command = ("upgrade", "omni", str(helm.CHART), "--reset-then-reuse-values")
        return run_helm(program, empty.kubeconfig, *command, *options)

    misspelt = "--set=watch.namespaces={default,nowhere}"
    with pytest.raises(CommandFailed, match='namespaces "nowhere" not found'):
        upgrade(misspelt)
    assert api.get(role)["rules"] != rules
    run_helm(program, empty.kubeconfig, "rollback", "omni", "1")
    with pytest.raises(CommandFailed, match="has been rolled back due to atomic being set"):
        upgrade(misspelt, "--atomic")
    assert api.get(role)["rules"] == rules


def test_a_watched_namespace_that_was_deleted_is_taken_from_the_list(
    program: Path, empty: ControlPlane, api: Api
) -> None:
    create_namespace(empty, api, "gone")
    install(program, empty.kubeconfig, "--create-namespace", "--set=watch.namespaces={default,gone}")
    api.delete("/api/v1/namespaces/gone")
    deadlines.wait_until("the namespace to be gone", deadlines.API_READY, lambda: api.gone("/api/v1/namespaces/gone"))
    upgrade = ("upgrade", "omni", str(helm.CHART), "--reset-then-reuse-values")
    with pytest.raises(CommandFailed, match='namespaces "gone" not found'):
        run_helm(program, empty.kubeconfig, *upgrade)
    run_helm(program, empty.kubeconfig, *upgrade, "--set=watch.namespaces={default}", "--atomic")
    assert api.get(f"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/{NAME}")["rules"]


EVERYTHING = {
    **helm.POD_VALUES,
    "networkPolicy": {"enabled": True},
    "metrics": {"dashboards": {"enabled": True}},
}


def test_the_api_server_knows_every_field_of_every_object(
    program: Path, empty: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """By its own schemas, strictly, with all that values add but objects of the Prometheus operator."""
    create_namespace(empty, api)
    values = tmp_path / "values.json"
    values.write_text(json.dumps(EVERYTHING))
    strict = ("apply", "--dry-run=server", "--validate=strict", "--filename=-")
    rendered = helm.rendered(program, f"--values={values}")
    bodies = {body["kind"]: body for body in rendered}
    assert {*bodies} >= {
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ConfigMap",
        "ClusterRole",
        "Service",
        "Pod",
    }
    empty.kubectl(*strict, text=json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered}))
    bodies["Service"]["spec"]["misspelt"] = 1
    with pytest.raises(CommandFailed, match=r'unknown field "spec\.misspelt"'):
        empty.kubectl(*strict, text=json.dumps(bodies["Service"]))
