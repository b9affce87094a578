"""The chart on a real API server: installed, upgraded and removed by Helm, its operator with its own account only."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import helm
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import CommandFailed
from e2e.cluster.processes import run
from e2e.jobs import JobOnPlane
from e2e.operator_process import RunningOperator, install_kuberay, operator
from omni_operator.handlers.background import LEASE as CANARY

pytestmark = pytest.mark.cluster

SYSTEM = "omni-system"
NAME = "omni-omni-operator"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{NAME}"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/diffusionrljobs.diffusionrl.io"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
# The API server itself refuses pods that do not meet the standard.
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{NAME}"
LEASES = ((NAME, "yes"), (CANARY, "yes"), ("another-controller", "no"))


@pytest.fixture
def own(empty: ControlPlane) -> ControlPlane:
    """A control plane for one test, with KubeRay's custom resources and without ours."""
    install_kuberay(empty)
    return empty


@pytest.fixture
def api(own: ControlPlane) -> Iterator[Api]:
    with own.api() as client:
        yield client


def run_helm(program: Path, plane: ControlPlane, *arguments: str) -> str:
    return helm.on_cluster(program, plane.kubeconfig, [*arguments, f"--namespace={SYSTEM}"], deadlines.ADDONS_READY)


def installed(program: Path, plane: ControlPlane, *options: str) -> str:
    """Install the chart and wait for its pod, which a fake node pretends to run."""
    return run_helm(program, plane, "install", "omni", str(helm.CHART), "--create-namespace", "--wait", *options)


def settings(api: Api) -> dict[str, str]:
    """Environment variables of the Deployment's pod, without their prefix."""
    (container,) = api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    return {item["name"].removeprefix("OMNI_OPERATOR_"): item["value"] for item in container["env"] if "value" in item}


def as_its_account(plane: ControlPlane, api: Api, folder: Path) -> Any:
    """The operator as a process with the settings of its Deployment and a token of its account."""
    kept = {name: value for name, value in settings(api).items() if not name.endswith("_PORT")}
    kubeconfig = plane.kubeconfig_of_account(SYSTEM, NAME)
    return operator(plane, folder, kubeconfig, **{**kept, "IMAGE": "rollout:1", "RETRY_SECONDS": "0.1"})


def denied(plane: ControlPlane) -> set[tuple[str, str, str]]:
    """Requests of the account that were denied."""
    return {
        (call.verb, call.resource, call.namespace)
        for call in plane.audit.calls()
        if call.user == ACCOUNT and call.code in (401, 403)
    }


def whole_life(api: Api, namespace: str, running: RunningOperator) -> None:
    """A job that loses its head, retries, succeeds and is deleted; and one that is deleted by its TTL."""
    job = JobOnPlane(api, namespace, spec={"backoffLimit": 1})
    job.run_and_lose_a_head()
    job.end(2)
    job.await_condition("Succeeded", "True")
    api.delete(f"{job.path}/{job.name}")
    job.await_gone()
    short = JobOnPlane(api, namespace, name="short", spec={"ttlSecondsAfterFinished": 0})
    short.submit()
    short.run(1)
    short.await_condition("Ready", "True")
    short.end(1)
    short.await_gone()
    assert running.page("/healthz").status_code == 200


def test_its_operator_is_denied_nothing_and_its_pod_meets_the_restricted_standard(
    program: Path, own: ControlPlane, api: Api, tmp_path: Path
) -> None:
    api.post("/api/v1/namespaces", {"metadata": {"name": SYSTEM, "labels": RESTRICTED}})
    notes = installed(program, own, "--set=networkPolicy.enabled=true")
    (pod,) = api.get(f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
    assert pod["status"]["phase"] == "Running"
    assert pod["spec"]["serviceAccountName"] == NAME
    assert "watches all namespaces" in notes
    assert "KubeRay is not installed" not in notes
    with as_its_account(own, api, tmp_path) as running:
        whole_life(api, "default", running)
    assert {call.verb for call in own.audit.calls() if call.user == ACCOUNT} >= {"watch", "patch", "create", "delete"}
    assert denied(own) == set()


def test_in_some_namespaces_its_operator_is_denied_nothing_there_and_all_elsewhere(
    program: Path, own: ControlPlane, api: Api, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    installed(program, own, "--set=watch.namespaces={one,two}")
    with as_its_account(own, api, tmp_path) as running:
        whole_life(api, "two", running)
        JobOnPlane(api, "default").submit()
        assert denied(own) == set()
    kubectl = [own.layout.tools.program("kubectl"), f"--kubeconfig={own.kubeconfig_of_account(SYSTEM, NAME)}"]
    for allowed, question in (
        ("yes", ("patch", "rayjobs.ray.io", "--namespace=one")),
        ("no", ("list", "diffusionrljobs.diffusionrl.io", "--namespace=default")),
        ("no", ("get", "secrets", "--namespace=one")),
        ("no", ("create", "pods/exec", "--namespace=one")),
        *(
            (permitted, ("patch", f"leases.coordination.k8s.io/{lease}", f"--namespace={SYSTEM}"))
            for lease, permitted in LEASES
        ),
        ("no", ("create", "roles.rbac.authorization.k8s.io", "--namespace=one")),
    ):
        assert answer([*kubectl, "auth", "can-i", *question]) == allowed, question
    assert JobOnPlane(api, "default").status() == {"observedGeneration": -1}


def answer(command: list[str]) -> str:
    """The answer of `kubectl auth can-i`, whose exit status is the same."""
    try:
        return run(command).strip()
    except CommandFailed as error:
        return str(error).rsplit("\n", maxsplit=1)[-1].strip()


def test_an_upgrade_and_a_rollback_change_the_custom_resource_and_disturb_no_job(
    program: Path, own: ControlPlane, api: Api, tmp_path: Path
) -> None:
    installed(program, own)
    with as_its_account(own, api, tmp_path):
        job = JobOnPlane(api, "default")
        job.start()
    before = api.get(job.ray("rayjobs", job.attempt(1)))
    # The next version of the chart, whose custom resource has one more column.
    newer = tmp_path / "newer"
    shutil.copytree(helm.CHART, newer)
    (path,) = (newer / "files").glob("*.yaml")
    text = path.read_text()
    column = "    additionalPrinterColumns:\n"
    assert column in text
    added = "    - {name: Newer, type: string, jsonPath: .metadata.name}\n"
    path.write_text(text.replace(column, column + added))
    run_helm(program, own, "upgrade", "omni", str(newer), "--wait", "--set=tuning.passes=3")
    columns = api.get(CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert "Newer" in {item["name"] for item in columns}
    assert settings(api)["PASSES"] == "3"
    with as_its_account(own, api, tmp_path):
        api.patch(f"{job.path}/{job.name}", {"metadata": {"annotations": {"example.com/looked": "again"}}})
        after = api.get(job.ray("rayjobs", job.attempt(1)))
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        assert len(api.get(job.ray("rayjobs"))["items"]) == 1
    run_helm(program, own, "rollback", "omni", "1", "--wait")
    columns = api.get(CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert "Newer" not in {item["name"] for item in columns}
    assert settings(api).get("PASSES") != "3"
    with as_its_account(own, api, tmp_path):
        assert api.get(job.ray("rayjobs", job.attempt(1)))["metadata"]["generation"] == before["metadata"]["generation"]
        job.end(1)
        job.await_condition("Succeeded", "True")
    assert job.status()["attempts"] == 1


def test_uninstalling_leaves_jobs_and_installing_again_takes_them_up(
    program: Path, own: ControlPlane, api: Api, tmp_path: Path
) -> None:
    installed(program, own)
    with as_its_account(own, api, tmp_path):
        job = JobOnPlane(api, "default")
        job.start()
    output = run_helm(program, own, "uninstall", "omni", "--wait")
    assert "[CustomResourceDefinition] diffusionrljobs.diffusionrl.io" in output
    for path in (
        DEPLOYMENT,
        f"{RBAC}/clusterroles/{NAME}-{SYSTEM}",
        f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{NAME}",
    ):
        assert api.gone(path)
    assert api.get(f"{job.path}/{job.name}")["status"]["attempts"] == 1
    uid = api.get(job.ray("rayjobs", job.attempt(1)))["metadata"]["uid"]
    installed(program, own)
    with as_its_account(own, api, tmp_path):
        job.end(1)
        job.await_condition("Succeeded", "True")
    assert api.get(job.ray("rayjobs", job.attempt(1)))["metadata"]["uid"] == uid
    assert denied(own) == set()
