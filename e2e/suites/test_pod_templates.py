"""The operator's check of pod templates and the API server's, with KubeRay's CRD, come to the same verdicts.

Pods that KubeRay would make of an accepted RayJob can still be refused: the operator finds the commonest mistakes
before, and refuses none that the API server accepts.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import install
from e2e.pod_schema import TARGET, pod_template, text
from e2e.random_documents import Documents
from e2e.verdicts import load
from omni_operator import plan
from omni_operator.api import DiffusionRLJob, JobError, read_job
from omni_operator.api.spec.pod_schema import find_errors
from omni_operator.plan.pod_policy import PodPolicy
from omni_operator.plan.pod_refusals import find_invalid_pods

pytestmark = pytest.mark.cluster

RAYJOBS = "/apis/ray.io/v1/namespaces/default/rayjobs"
POSTED = f"{RAYJOBS}?dryRun=All&fieldValidation=Strict"
COUNT = 200
JOB = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: a/b}
  data: {train: [t.jsonl]}
  reward: {scorers: [{name: jpeg}]}
  trainer: {totalSteps: 3}
"""
LAX = PodPolicy.model_validate(
    {
        "serviceAccounts": ["*"],
        "serviceAccountTokens": True,
        "runAsRoot": True,
        "privilegeEscalation": True,
        "privileged": True,
        "capabilities": ["ALL"],
        "hostNamespaces": ["Network", "IPC", "PID"],
        "nodeName": True,
        "hostPaths": [{"path": "/", "readOnly": False}],
        "volumeTypes": [
            "awsElasticBlockStore",
            "azureDisk",
            "azureFile",
            "cephfs",
            "cinder",
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "fc",
            "flexVolume",
            "flocker",
            "gcePersistentDisk",
            "gitRepo",
            "glusterfs",
            "image",
            "iscsi",
            "nfs",
            "persistentVolumeClaim",
            "photonPersistentDisk",
            "portworxVolume",
            "projected",
            "quobyte",
            "rbd",
            "scaleIO",
            "secret",
            "storageos",
            "vsphereVolume",
        ],
    }
)
SETTINGS = plan.ClusterSettings(image="rollout:1", pod_policy=LAX)
GRACE = "terminationGracePeriodSeconds"
mistakes = load(Path(__file__).parents[2] / "tests" / "control" / "plan" / "pod_mistakes.py")


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    install(plane)
    plane.await_account("default")
    with plane.api("e2e-pod-templates") as client:
        yield client


def refusal(api: Api, rayjob: dict[str, Any]) -> str | None:
    try:
        api.post(POSTED, rayjob)
    except ApiError as error:
        assert error.code in (400, 422), f"neither accepted nor refused: {error}"
        return str(error)
    return None


def test_the_shipped_schema_is_that_of_the_pinned_kuberay() -> None:
    assert TARGET.read_text(encoding="utf-8") == text(), "run `make pod-schema` and commit the file"


def test_both_verdicts_on_random_templates_are_the_same(api: Api) -> None:
    rayjob = plan.render_objects(read_job(JOB, "job.yaml").job, 1, SETTINGS)[-1]
    group = rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]
    base = group["template"]
    documents = Documents(1, pod_template())
    verdicts = []
    for _ in range(COUNT):
        template = copy.deepcopy(base)
        for _ in range(documents.pick([1, 1, 2])):
            documents.change(template)
        group["template"] = template
        ours = list(find_errors(template, complete=True))
        theirs = refusal(api, rayjob)
        verdicts.append((bool(ours), bool(theirs), ours, theirs, template))
    assert [verdict for verdict in verdicts if verdict[0] != verdict[1]] == []
    assert COUNT / 5 < sum(ours for ours, *_ in verdicts) < COUNT * 4 / 5, "both verdicts are there"


def test_a_job_that_is_accepted_gives_a_rayjob_that_is_accepted(api: Api) -> None:
    """Created, and applied as the operator does: the two fail in different ways."""
    documents = Documents(2, pod_template())
    accepted = 0
    for _ in range(COUNT):
        template: dict[str, Any] = {"spec": {"containers": [{"name": "ray"}]}}
        for _ in range(documents.pick([1, 1, 2])):
            documents.change(template)
        try:
            loaded = read_job(JOB, "job.yaml")
            document = {**loaded.document.plain()}
            document["spec"]["trainer"]["podTemplate"] = template
            job = type(loaded.job).model_validate(document)
        except (JobError, ValueError):
            continue
        if plan.find_refusals(job, SETTINGS):
            continue
        accepted += 1
        rayjob = plan.render_objects(job, 1, SETTINGS)[-1]
        assert refusal(api, rayjob) is None, template
        path = f"{RAYJOBS}/a-job-a01"
        api.patch(path, rayjob, "apply", dryRun="All", fieldManager="e2e", force="true")
    assert accepted > COUNT / 10


def refused_pods(api: Api, job: DiffusionRLJob) -> list[str]:
    """Why the API server refuses pods that KubeRay would make of the job's RayJob."""
    cluster = plan.render_objects(job, 1, SETTINGS)[-1]["spec"]["rayClusterSpec"]
    messages = []
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        body = {"metadata": {"name": "a-pod"}, "spec": group["template"]["spec"]}
        try:
            api.post("/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", body)
        except ApiError as error:
            assert error.code in (400, 403, 422), f"neither accepted nor refused: {error}"
            messages.append(str(error))
    return messages


def with_trainer(fields: dict[str, Any]) -> DiffusionRLJob:
    assignments = [f"spec.trainer.{name}={json.dumps(value)}" for name, value in fields.items()]
    return read_job(JOB, "job.yaml", ["spec.trainer.accelerator={vendor: NVIDIA}", *assignments]).job


def test_mistakes_that_the_operator_names_are_mistakes_to_the_api_server(api: Api) -> None:
    verdicts = {
        name: (bool(plan.find_refusals(job, SETTINGS)), refused_pods(api, job))
        for name, job in (
            *((name, with_trainer(fields)) for name, (fields, _, _) in mistakes.MISTAKES.items()),
            *((name, with_trainer(fields)) for name, fields in mistakes.RIGHT.items()),
        )
    }
    # The API server takes a negative grace period for one second, in which no trainer saves a checkpoint.
    differ = {name: verdict for name, verdict in verdicts.items() if verdict[0] != bool(verdict[1])}
    assert differ == {"a negative grace period": (True, [])}
    assert {name for name, (ours, _) in verdicts.items() if ours} == set(mistakes.MISTAKES)


def test_no_pod_is_refused_that_the_api_server_accepts(api: Api) -> None:
    documents = Documents(3, pod_template())
    refused = 0
    for _ in range(2 * COUNT):
        template: dict[str, Any] = {"spec": {"containers": [{"name": "ray"}]}}
        for _ in range(documents.pick([1, 2, 3])):
            documents.change(template)
        try:
            job = with_trainer({"podTemplate": template})
        except JobError:
            continue
        if ours := [invalid for invalid in find_invalid_pods(job, SETTINGS) if invalid.at[-1] != GRACE]:
            refused += 1
            assert refused_pods(api, job) != [], (ours, template)
    assert refused > COUNT / 10
