"""PURE: the short-lived pod that reads a run folder after the job's own pods are gone."""

from collections.abc import Mapping
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.plan.pods.containers import CONTAINER, USER

from .job_pods import RunPlace

VOLUME = "runs"
LIFE_SECONDS = 3600  # it ends by itself if drl is killed
SUFFIX = "-fetch-"


def render_fetch_pod(body: Mapping[str, Any], place: RunPlace, image: str) -> dict[str, Any]:
    """A pod that mounts the claim of a job for reading and waits.

    It satisfies Pod Security `restricted`, and is deleted with the job if it is still there.

    Args:
        body: the job, as it was read.
    """
    job = DiffusionRLJob.model_validate({**body, "status": {}})
    runtime = job.spec.runtime
    container = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": runtime.image_pull_policy,
        "command": ["python3", "-c", f"import time; time.sleep({LIFE_SECONDS})"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": VOLUME, "mountPath": place.mount, "readOnly": True}],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": place.claim}}],
    }
    if runtime.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in runtime.image_pull_secrets]
    if runtime.service_account_name:
        spec["serviceAccountName"] = runtime.service_account_name
    if job.spec.scheduling.tolerations:
        spec["tolerations"] = [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in job.spec.scheduling.tolerations
        ]
    owner = {
        "apiVersion": body.get("apiVersion", job.api_version),
        "kind": "DiffusionRLJob",
        "name": job.metadata.name,
        "uid": body["metadata"]["uid"],
    }
    # Not the labels of the job's pods: the operator counts those.
    metadata = {
        "generateName": f"{job.metadata.name}{SUFFIX}",
        "ownerReferences": [owner],
        "labels": {"app.kubernetes.io/managed-by": "drl"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
