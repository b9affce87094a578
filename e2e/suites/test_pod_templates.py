"""The operator's check of pod templates and the API server's, with KubeRay's CRD, come to the same verdicts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import install
from e2e.pod_schema import TARGET, pod_template, text
from e2e.random_documents import Documents
from omni_operator import plan
from omni_operator.api import JobError, read_job
from omni_operator.api.spec.pod_schema import find_errors
from omni_operator.plan.pod_policy import PodPolicy

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


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    install(plane)
    with plane.api("e2e-pod-templates") as made:
        yield made


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
    assert [found for found in verdicts if found[0] != found[1]] == []
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
