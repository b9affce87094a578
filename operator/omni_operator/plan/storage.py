"""PURE: volumes of a job: the run folder and downloaded models."""

from __future__ import annotations

import posixpath
from typing import Any

from omni_operator.api import DiffusionRLJob

from .containers import CONTAINER, secret_env, volume
from .merge import merge_templates

Object = dict[str, Any]
RUNS, MODELS = "runs", "models"
MODELS_PATH = "/var/lib/diffusionrl/models"


def run_folder_path(job: DiffusionRLJob) -> str:
    """Path of the job's run folder in its pods."""
    return posixpath.join(job.spec.checkpoint.path, job.metadata.name)


def add_run_folder(template: Object, job: DiffusionRLJob) -> Object:
    """Add the volume of the run folder: the claim, or an emptyDir, which is deleted with the pod."""
    checkpoint = job.spec.checkpoint
    added = {
        "containers": [{"name": CONTAINER, "volumeMounts": [{"name": RUNS, "mountPath": checkpoint.path}]}],
        "volumes": [volume(RUNS, checkpoint.claim_name)],
    }
    return merge_templates(template, {"spec": added})


def add_model(template: Object, job: DiffusionRLJob) -> Object:
    """Add an init container that downloads the model, if it is a model id."""
    model = job.spec.model
    if model.base_is_folder:
        return template
    container = template["spec"]["containers"][0]
    mount = {"name": MODELS, "mountPath": MODELS_PATH}
    fetch = {
        "name": "fetch-model",
        "image": container["image"],
        "imagePullPolicy": container["imagePullPolicy"],
        "command": ["hf", "download", model.base, "--local-dir", model_path(model.base)],
        "env": [{"name": "HF_HOME", "value": f"{MODELS_PATH}/.cache"}],
        # A ResourceQuota refuses pods with a container without resources. These add nothing to the pod's request,
        # which is the larger one of init container and containers.
        "resources": _without_accelerators(container["resources"]),
        "securityContext": container["securityContext"],
        "volumeMounts": [mount],
    }
    if model.revision:
        fetch["command"] += ["--revision", model.revision]
    if model.token_secret_ref:
        fetch["env"].append(secret_env("HF_TOKEN", model.token_secret_ref.name, model.token_secret_ref.key))
    added = {
        "initContainers": [fetch],
        "containers": [{"name": CONTAINER, "volumeMounts": [{**mount, "readOnly": True}]}],
        "volumes": [volume(MODELS, model.cache.claim_name if model.cache else None)],
    }
    return merge_templates(template, {"spec": added})


def _without_accelerators(resources: Object) -> Object:
    return {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in resources.items()
    }


def model_path(base: str) -> str:
    """Path of a downloaded model in a pod."""
    return f"{MODELS_PATH}/{base}"
