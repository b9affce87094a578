"""PURE: worker groups of a job's RayCluster, one for each pool."""

import math
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import (
    JOB_ANNOTATION,
    OVERRIDES_ANNOTATION,
    POD_LIMITS,
    REPORTS_PATH,
    ROLLOUT_GROUP,
    TRAINER_GROUP,
    Names,
    report_audience,
    rolling_names,
)
from omni_operator.plan.cluster_settings import ClusterSettings
from omni_operator.plan.pods.disruptions import protect_pod
from omni_operator.plan.pools import Pool, pools_of

from . import quantity
from .accelerators import AcceleratorNeeds, resolve_accelerator
from .containers import CONTAINER, apply_user_template, image_of_template, pre_stop, render_pod_template, secret_env
from .merge import merge_templates
from .storage import add_models, add_output, add_prompt_cache, add_run_folder

Object = dict[str, Any]
REQUESTS = {"cpu": "1", "memory": "4Gi"}
# Ray's CPUs only count actors: every agent-loop, reward, server and router actor requests one.
LOGICAL_CPUS = 16
# Environment variables of the training programs; the head runs none of them.
VARIABLES = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "RAY_DEDUP_LOGS": "0"}
JOB_FOLDER = "/etc/diffusionrl/job"
JOB = "job.yaml"
OVERRIDES = "overrides.txt"
TOKEN_FOLDER = "/var/run/secrets/diffusionrl.io/report"
TOKEN_FILE = "token"
TOKEN_SECONDS = 3600  # the kubelet renews the token before it expires
DRAIN_PROGRAM = "verl_omni.utils.drain_node"


def render_worker_groups(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> list[Object]:
    """`spec.rayClusterSpec.workerGroupSpecs` of a RayJob, the trainer's group first."""
    return [render_worker_group(job, pool, attempt, settings) for pool in pools_of(job)]


def render_group(job: DiffusionRLJob, name: str, attempt: int, settings: ClusterSettings) -> Object:
    """A worker group that the job has, by its name."""
    pool = next(pool for pool in pools_of(job) if pool.group == name)
    return render_worker_group(job, pool, attempt, settings)


def render_worker_group(job: DiffusionRLJob, pool: Pool, attempt: int, settings: ClusterSettings) -> Object:
    """The worker group of a pool. Only trainer pods get what the training program alone reads: files, token, key."""
    needs = resolve_accelerator(pool.accelerator, settings)
    labels = Names(job.metadata.name).attempt_labels(attempt)
    if pool.rolled:
        labels[rolling_names(pool.group).template] = pool.rolled
    values = {**VARIABLES, "DIFFUSIONRL_ATTEMPT": str(attempt)}
    variables = [*needs.env, *({"name": name, "value": value} for name, value in values.items())]
    template = render_pod_template(
        job,
        settings,
        labels={**needs.labels, **labels},
        env=variables,
        resources=pool.resources,
        default_requests=REQUESTS,
        shared_memory=pool.shared_memory.size_limit,
        probe={"path": "/api/local_raylet_healthz", "port": 52365},
    )
    # Init containers run the image of their pod: nodes pull no second one, which may be for another accelerator.
    container = template["spec"]["containers"][0]
    container["image"] = image_of_template(pool.pod_template) or container["image"]
    accelerators = {needs.ray_resource: str(needs.count)} if pool.has_accelerators else {}
    fewest, most = POD_LIMITS if pool.live else (pool.replicas, pool.replicas)
    parts = [_placement(pool, needs)]
    if pool.group == TRAINER_GROUP:
        template = add_output(add_run_folder(template, job), job)
        parts += [_job_folder(), _tracking(job), _reports(job, settings), protect_pod(job)]
    elif pool.drain_seconds:
        # However the pod is deleted, it finishes what it does.
        parts.append(pre_stop(DRAIN_PROGRAM, pool.drain_seconds))
    if pool.group == ROLLOUT_GROUP:
        template = add_prompt_cache(template, job)
    template = add_models(template, job, pool)
    for part in parts:
        template = merge_templates(template, part)
    return {
        "groupName": pool.group,
        "replicas": pool.replicas,
        # KubeRay keeps `replicas` between these.
        "minReplicas": fewest,
        "maxReplicas": most,
        "rayStartParams": {"object-store-memory": str(quantity.whole(pool.shared_memory.size_limit) // 2)},
        "resources": {"CPU": str(_logical_cpus(job, pool)), **accelerators, pool.resource: "1"},
        "template": apply_user_template(template, dict(pool.pod_template), labels),
    }


def _logical_cpus(job: DiffusionRLJob, pool: Pool) -> int:
    requested = {**pool.resources.requests, **pool.resources.limits}.get("cpu", "0")
    accelerators = pool.accelerator.count
    most = max(peer.accelerator.count for peer in pools_of(job))
    # What the trainer derives at most in one pod (verl_omni/trainer/settings/process_counts.py, tests/contract).
    # Agent-loop and reward workers are spread over the pods of both pools.
    loops = job.spec.rollout.agent_loop.workers or 2 * math.ceil(most / 8)
    rewards = job.spec.reward.replicas or most
    judge = job.spec.reward.model
    shared = accelerators if judge and not judge.separate and pool.group == TRAINER_GROUP else 0
    return max(LOGICAL_CPUS, 2 * (accelerators + shared) + loops + rewards + 8, quantity.whole(requested))


def _placement(pool: Pool, needs: AcceleratorNeeds) -> Object:
    scheduling = pool.scheduling
    limits = needs.limits()
    spec: Object = {}
    if limits:
        spec["containers"] = [{"name": CONTAINER, "resources": {"requests": limits, "limits": limits}}]
    if needs.runtime_class:
        spec["runtimeClassName"] = needs.runtime_class
    if selector := {**needs.node_selector, **scheduling.node_selector}:
        spec["nodeSelector"] = selector
    if scheduling.tolerations:
        spec["tolerations"] = [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in scheduling.tolerations
        ]
    levels = {"required": scheduling.topology.required, "preferred": scheduling.topology.preferred}
    annotations = {f"kueue.x-k8s.io/podset-{how}-topology": level for how, level in levels.items() if level}
    return {"spec": spec, **({"metadata": {"annotations": annotations}} if annotations else {})}


def _job_folder() -> Object:
    """The job and its overrides as files, from the pod's annotations."""
    items = [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
        for path, annotation in ((JOB, JOB_ANNOTATION), (OVERRIDES, OVERRIDES_ANNOTATION))
    ]
    return _mounted("job", {"downwardAPI": {"items": items}}, JOB_FOLDER)


def _tracking(job: DiffusionRLJob) -> Object:
    secret = job.spec.observability.tracking.wandb_secret_ref
    return _with_env([secret_env("WANDB_API_KEY", secret.name, secret.key)]) if secret else {}


def _reports(job: DiffusionRLJob, settings: ClusterSettings) -> Object:
    """Address and token for the trainer's reports; the token is valid only for reports of this job."""
    if settings.report_url is None:
        return {}
    audience = report_audience(job.metadata.namespace or "default", job.metadata.name)
    token = {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": TOKEN_FILE}
    volume = {"projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": token}]}}
    variables = {
        "DIFFUSIONRL_REPORT_URL": settings.report_url.rstrip("/") + REPORTS_PATH,
        "DIFFUSIONRL_REPORT_TOKEN_FILE": f"{TOKEN_FOLDER}/{TOKEN_FILE}",
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return merge_templates(_mounted("report-token", volume, TOKEN_FOLDER), _with_env(env))


def _mounted(name: str, source: Object, path: str) -> Object:
    mount = {"name": name, "mountPath": path, "readOnly": True}
    return {
        "spec": {"containers": [{"name": CONTAINER, "volumeMounts": [mount]}], "volumes": [{"name": name, **source}]}
    }


def _with_env(env: list[Object]) -> Object:
    return {"spec": {"containers": [{"name": CONTAINER, "env": env}]}}
