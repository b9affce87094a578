"""PURE: volumes of a job: the run folder, downloaded models, and where results are sent."""

import posixpath
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, is_scorer_group
from omni_operator.plan.pools import Pool

from .containers import CONTAINER, container_of_template, secret_env, variables_of_template, volume
from .merge import merge_templates

Object = dict[str, Any]
RUNS = "runs"
MODELS = "models"
PROMPT_CACHE = "prompt-cache"
OUTPUT = "output"
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
HUB_TOKEN = "HF_TOKEN"
HUB_OFFLINE = "HF_HUB_OFFLINE"
HUB_ENDPOINT = "HF_ENDPOINT"
HUB_PROGRAM = "hf"
_ON = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads variables
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


def prompt_cache_path(runs: str) -> str:
    """The folder of prompt embeddings among the run folders; no job has its name."""
    return posixpath.join(runs, f".{PROMPT_CACHE}")


def add_prompt_cache(template: Object, job: DiffusionRLJob) -> Object:
    """Add an emptyDir for prompt embeddings to a pod without the run folder, if the job keeps them."""
    if not job.spec.rollout.engine.prompt_cache:
        return template
    mount = {"name": PROMPT_CACHE, "mountPath": prompt_cache_path(job.spec.checkpoint.path)}
    added = {
        "containers": [{"name": CONTAINER, "volumeMounts": [mount]}],
        "volumes": [volume(PROMPT_CACHE, None)],
    }
    return merge_templates(template, {"spec": added})


def add_output(template: Object, job: DiffusionRLJob) -> Object:
    """Add the claim that results are sent to, and the keys of the stores that the training program uses."""
    output = job.spec.output
    added = {}
    if output and output.folder and output.claim_name:
        mount = {"name": OUTPUT, "mountPath": output.folder}
        added = {
            "containers": [{"name": CONTAINER, "volumeMounts": [mount]}],
            "volumes": [volume(OUTPUT, output.claim_name)],
        }
    env = [*(store_keys(job) if job.spec.trainer_uses_s3 else ()), *(_hub_access(job) if job.spec.sends_to_hub else ())]
    if env:
        template = merge_templates(template, {"spec": {"containers": [{"name": CONTAINER, "env": env}]}})
    return merge_templates(template, {"spec": added})


def store_keys(job: DiffusionRLJob) -> list[Object]:
    """Variables with the keys of the S3-compatible store, from the job's Secret."""
    secret = job.spec.storage.secret_name
    if secret is None:
        return []
    variables = [secret_env(name, secret, name) for name in STORE_KEYS]
    # A Secret that has the hub's token may leave the store to the pods' identity.
    for entry in variables if job.spec.sends_to_hub else variables[-1:]:
        entry["valueFrom"]["secretKeyRef"]["optional"] = True
    return variables


def is_offline(value: str | None) -> bool:
    """Whether a value of `HF_HUB_OFFLINE` keeps programs from the hub; None: there is none."""
    return value is not None and value.upper() in _ON


def endpoint_problem(job: DiffusionRLJob, hub: str | None) -> str | None:
    """Why it is unclear whether `spec.storage.endpoint` is for the store or for the hub; None if it is clear.

    Args:
        hub: the trainer's `HF_ENDPOINT`. If it is set, `spec.storage.endpoint` is for the S3-compatible store.
    """
    if not job.spec.sends_to_hub or not job.spec.storage.endpoint:
        return None
    if job.spec.uses_s3 and not hub:
        return (
            "is ambiguous, because the job uses an S3-compatible store and the Hugging Face hub: for the store, also "
            f"set the trainer's variable {HUB_ENDPOINT} (https://huggingface.co); for the hub, set only that one"
        )
    if hub and not job.spec.uses_s3:
        return f"is given, and the trainer's variable {HUB_ENDPOINT} is {hub}: write one of them"
    return None


def trainer_variables(job: DiffusionRLJob) -> dict[str, str | None]:
    """Variables that the author's template gives to the trainer's container; None: the value comes from elsewhere."""
    return variables_of_template(job.spec.trainer.pod_template)


def _hub_access(job: DiffusionRLJob) -> list[Object]:
    """Variables of a training program that sends results to the hub."""
    secret = job.spec.storage.secret_name
    # Images set it to 1, which the trainer takes for the user's wish. Empty counts as not given: then only sending
    # reaches the hub.
    online = {"name": HUB_OFFLINE, "value": ""}
    return [online, *([secret_env(HUB_TOKEN, secret, HUB_TOKEN)] if secret else ())]


def add_models(template: Object, job: DiffusionRLJob, pool: Pool) -> Object:
    """Add init containers that download what the pods of a pool read: the model, if it is a model id or in a store, and
    the judge's model id. Trainer pods have the reward workers, which read the judge's tokenizer.

    They get the variables and mounts that the author's template gives to the pod's main container: a mirror, a proxy or
    certificates are needed for both. What downloads need wins.
    """
    downloads = _downloads(job, pool)
    if not downloads:
        return template
    model = job.spec.model
    user_container = container_of_template(pool.pod_template)
    user_fields: Object = {
        name: user_container[name] for name in ("env", "envFrom", "volumeMounts") if name in user_container
    }
    container = template["spec"]["containers"][0]
    mount = {"name": MODELS, "mountPath": MODELS_PATH}
    image = {"image": container["image"], "imagePullPolicy": container["imagePullPolicy"]}
    common = {
        # A ResourceQuota refuses pods with a container without resources. These add nothing to the pod's request,
        # which is the larger one of init container and containers.
        "resources": _without_accelerators(container["resources"]),
        "securityContext": container["securityContext"],
        "volumeMounts": [mount],
    }
    added = {
        "initContainers": [
            {"name": name, **image, **merge_templates(user_fields, {**fetch, **common})}
            for name, fetch in downloads.items()
        ],
        "containers": [{"name": CONTAINER, "volumeMounts": [{**mount, "readOnly": True}]}],
        "volumes": [volume(MODELS, model.cache.claim_name if model.cache else None)],
    }
    return merge_templates(template, {"spec": added})


def downloads_from_hub(job: DiffusionRLJob, pool: Pool) -> bool:
    """Whether the pods of a pool download a model id."""
    return any(download["command"][0] == HUB_PROGRAM for download in _downloads(job, pool).values())


def _downloads(job: DiffusionRLJob, pool: Pool) -> dict[str, Object]:
    """Commands and variables of the init containers that download, by name."""
    model = job.spec.model
    judge = job.spec.reward.model
    downloads: dict[str, Object] = {}
    if is_scorer_group(pool.group):
        return downloads
    if pool.group != REWARD_GROUP and not model.base_is_folder:
        downloads["fetch-model"] = (
            _from_store(job) if model.base_in_store else _from_hub(job, model.base, model.revision)
        )
    if pool.group != ROLLOUT_GROUP and judge and not judge.base_is_folder:
        downloads["fetch-judge"] = _from_hub(job, judge.base, None)
    return downloads


def _from_hub(job: DiffusionRLJob, base: str, revision: str | None) -> Object:
    command = [HUB_PROGRAM, "download", base, "--local-dir", model_path(base, revision)]
    # Images set it to 1, which is for the training program: it reads what this container has downloaded.
    env = [{"name": HUB_OFFLINE, "value": "0"}, {"name": "HF_HOME", "value": f"{MODELS_PATH}/.cache"}]
    if revision:
        command += ["--revision", revision]
    if secret := job.spec.model.token_secret_ref:
        env.append(secret_env(HUB_TOKEN, secret.name, secret.key))
    return {"command": command, "env": env}


def _from_store(job: DiffusionRLJob) -> Object:
    base = job.spec.model.base
    storage = job.spec.storage
    command = ["python3", "-m", "verl_omni.utils.stores", "download", base, model_path(base)]
    for option, value in (("--endpoint", storage.endpoint), ("--region", storage.region)):
        command += [option, value] if value else []
    return {"command": command, "env": store_keys(job)}


def _without_accelerators(resources: Object) -> Object:
    return {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in resources.items()
    }


def model_path(base: str, revision: str | None = None) -> str:
    """Path of a downloaded model in a pod. Each revision has its own, because jobs may share a claim."""
    name = base.removeprefix("s3://").rstrip("/")
    # No repository of the hub has `--` in its name.
    return f"{MODELS_PATH}/{name}--{revision.replace('/', '--')}" if revision else f"{MODELS_PATH}/{name}"
