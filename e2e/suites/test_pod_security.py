"""The pods of a job and the operator's default policy, compared with Pod Security admission of a real API server."""

import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from omni_operator import plan
from omni_operator.api import DiffusionRLJob, load_job, read_job
from omni_operator.plan.pools import pools_of

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
JOBS = [*sorted((ROOT / "examples").glob("*.yaml")), *sorted((ROOT / "tests" / "golden").glob("*/job.yaml"))]
NAMESPACE = "pods-restricted"
SETTINGS = plan.ClusterSettings(image="rollout:1", report_url="http://operator.ns:8090")
JOB = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: a/b}
  data: {train: [t.jsonl]}
  reward: {scorers: [{name: jpeg}]}
  trainer: {totalSteps: 3, accelerator: {vendor: NVIDIA}}
"""
REFUSED = "violates PodSecurity"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


templates = load(ROOT / "tests" / "control" / "plan" / "templates_and_policies.py")


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    """A client, and a namespace that enforces `restricted` and has two service accounts."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    with plane.api("e2e-pod-security") as client:
        client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        client.post(accounts, {"metadata": {"name": "other"}})
        deadlines.wait_until("the service account", deadlines.API_READY, lambda: not client.gone(f"{accounts}/default"))
        yield client
        client.delete(f"/api/v1/namespaces/{NAMESPACE}")


def pods(job: DiffusionRLJob) -> Iterator[dict[str, Any]]:
    """The pods that KubeRay makes of the job's RayJob."""
    cluster = plan.render_objects(job, 1, SETTINGS)[-1]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = group["template"]
        yield {**template, "metadata": {**template["metadata"], "name": "a-pod", "namespace": NAMESPACE}}


def verdict(api: Api, pod: dict[str, Any]) -> str | None:
    """Why Pod Security refuses the pod; None if the API server accepts it."""
    try:
        api.post(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All&fieldValidation=Strict", pod)
    except ApiError as error:
        assert REFUSED in str(error), f"refused for another reason: {error}\n{json.dumps(pod)}"
        return str(error)
    return None


def in_the_namespace(path: Path) -> DiffusionRLJob:
    """The job of a file without accounts, priorities and RuntimeClasses, which the cluster does not have."""
    job = load_job(path).job
    runtime = job.spec.runtime.model_copy(update={"service_account_name": None})
    scheduling = job.spec.scheduling.model_copy(update={"priority_class_name": None})
    accelerator = job.spec.trainer.accelerator.model_copy(update={"preset": None})
    trainer = job.spec.trainer.model_copy(update={"accelerator": accelerator})
    accelerators = job.spec.rollout.accelerator
    rollout = job.spec.rollout.model_copy(
        update={"accelerator": accelerators and accelerators.model_copy(update={"preset": None})}
    )
    judge = job.spec.reward.model
    if judge is not None and judge.accelerator is not None:
        judge = judge.model_copy(update={"accelerator": judge.accelerator.model_copy(update={"preset": None})})
    reward = job.spec.reward.model_copy(update={"model": judge})
    changed = {"runtime": runtime, "scheduling": scheduling, "trainer": trainer, "rollout": rollout, "reward": reward}
    return job.model_copy(update={"spec": job.spec.model_copy(update=changed)})


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name + "-" + path.stem)
def test_pods_of_every_example_run_in_a_restricted_namespace(api: Api, path: Path) -> None:
    job = in_the_namespace(path)
    assert plan.find_refusals(job, SETTINGS) == []
    groups = 1 + len(pools_of(job))  # the head
    assert [verdict(api, pod) for pod in pods(job)] == [None] * groups


def test_the_default_policy_is_never_laxer_than_restricted(api: Api) -> None:
    differ = {}
    lifted = {name: template for name, (template, _) in templates.LIFTED.items()}
    stricter = {name: template for name, (template, _) in templates.STRICTER.items()}
    tables = (lifted, templates.NEVER, stricter, templates.ALLOWED)
    for name, template in itertools.chain.from_iterable(table.items() for table in tables):
        job = read_job(JOB, "job.yaml", [f"spec.trainer.podTemplate={json.dumps(template)}"]).job
        ours = [f"{refusal.at}: {refusal.text}" for refusal in plan.find_refusals(job, SETTINGS)]
        theirs = [reason for pod in pods(job) if (reason := verdict(api, pod))]
        if bool(ours) != bool(theirs):
            differ[name] = (ours, theirs)
    assert {name for name, (ours, _) in differ.items() if not ours} == set(), differ
    assert set(differ) == set(templates.STRICTER), differ


def test_a_limit_range_gives_pods_of_jobs_their_limits_and_refuses_what_is_larger(api: Api) -> None:
    """As docs/operate/security.md says; it is the administrator's, and no job can change it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/limitranges"
    limits = {
        "type": "Container",
        "default": {"cpu": "900", "memory": "900Gi"},
        "max": {"nvidia.com/gpu": "4"},
        "defaultRequest": {"cpu": "1", "memory": "1Gi"},
    }
    outcomes: dict[str, list[str]] = {"given": [], "refused": []}

    def admit_all() -> bool:
        """Whether the API server has seen the limits."""
        outcomes["given"] = []
        outcomes["refused"] = []
        for pod in (body for file in JOBS for body in pods(in_the_namespace(file))):
            try:
                admitted = api.post(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
            except ApiError as error:
                outcomes["refused"].append(str(error))
                continue
            for before, after in zip(pod["spec"]["containers"], admitted["spec"]["containers"], strict=True):
                if "memory" not in before.get("resources", {}).get("limits", {}):
                    outcomes["given"].append(after["resources"].get("limits", {}).get("memory", "none"))
        return bool(outcomes["refused"])

    api.post(path, {"metadata": {"name": "of-the-admin"}, "spec": {"limits": [limits]}})
    try:
        deadlines.wait_until("the limits to hold", deadlines.API_READY, admit_all)
    finally:
        api.delete(f"{path}/of-the-admin")
    assert {*outcomes["given"]} == {"900Gi"}
    assert [text for text in outcomes["refused"] if "maximum nvidia.com/gpu usage per Container is 4" not in text] == []
