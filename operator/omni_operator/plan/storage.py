"""PURE: volumes of a job: the run folder, downloaded models, and where results are sent."""

from __future__ import annotations

import posixpath
from typing import Any

from omni_operator.api import DiffusionRLJob

from .containers import CONTAINER, secret_env, volume
from .merge import merge_templates

Object = dict[str, Any]
RUNS, MODELS, OUTPUT = "runs", "models", "output"
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")  # the last one may be absent
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


def add_output(template: Object, job: DiffusionRLJob) -> Object:
    """Add the claim that results are sent to, and the keys of the store that the training program uses."""
    output, added = job.spec.output, {}
    if output and output.folder and output.claim_name:
        mount = {"name": OUTPUT, "mountPath": output.folder}
        added = {
            "containers": [{"name": CONTAINER, "volumeMounts": [mount]}],
            "volumes": [volume(OUTPUT, output.claim_name)],
        }
    if job.spec.trainer_uses_store:
        template = merge_templates(template, {"spec": {"containers": [{"name": CONTAINER, "env": store_keys(job)}]}})
    return merge_templates(template, {"spec": added})


def store_keys(job: DiffusionRLJob) -> list[Object]:
    """Variables with the keys of the store, from the job's Secret."""
    secret = job.spec.storage.secret_name
    if secret is None:
        return []
    made = [secret_env(name, secret, name) for name in STORE_KEYS]
    made[-1]["valueFrom"]["secretKeyRef"]["optional"] = True
    return made


def add_model(template: Object, job: DiffusionRLJob) -> Object:
    """Add an init container that downloads the model, if it is a model id or in a store."""
    model = job.spec.model
    if model.base_is_folder:
        return template
    container = template["spec"]["containers"][0]
    mount = {"name": MODELS, "mountPath": MODELS_PATH}
    fetch = {
        "name": "fetch-model",
        "image": container["image"],
        "imagePullPolicy": container["imagePullPolicy"],
        **(_from_store(job) if model.base_in_store else _from_hub(job)),
        # A ResourceQuota refuses pods with a container without resources. These add nothing to the pod's request,
        # which is the larger one of init container and containers.
        "resources": _without_accelerators(container["resources"]),
        "securityContext": container["securityContext"],
        "volumeMounts": [mount],
    }
    added = {
        "initContainers": [fetch],
        "containers": [{"name": CONTAINER, "volumeMounts": [{**mount, "readOnly": True}]}],
        "volumes": [volume(MODELS, model.cache.claim_name if model.cache else None)],
    }
    return merge_templates(template, {"spec": added})


def _from_hub(job: DiffusionRLJob) -> Object:
    model = job.spec.model
    command = ["hf", "download", model.base, "--local-dir", model_path(model.base)]
    env = [{"name": "HF_HOME", "value": f"{MODELS_PATH}/.cache"}]
    if model.revision:
        command += ["--revision", model.revision]
    if model.token_secret_ref:
        env.append(secret_env("HF_TOKEN", model.token_secret_ref.name, model.token_secret_ref.key))
    return {"command": command, "env": env}


def _from_store(job: DiffusionRLJob) -> Object:
    base, storage = job.spec.model.base, job.spec.storage
    command = ["python3", "-m", "verl_omni.utils.stores", "download", base, model_path(base)]
    for option, value in (("--endpoint", storage.endpoint), ("--region", storage.region)):
        command += [option, value] if value else []
    return {"command": command, "env": store_keys(job)}


def _without_accelerators(resources: Object) -> Object:
    return {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in resources.items()
    }


def model_path(base: str) -> str:
    """Path of a downloaded model in a pod."""
    return f"{MODELS_PATH}/{base.removeprefix('s3://').rstrip('/')}"
