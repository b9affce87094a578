"""PURE: worker group of a job's RayCluster; trainer and engines share the accelerators of its pods."""

from __future__ import annotations

import math
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.names import (
    JOB_ANNOTATION,
    OVERRIDES_ANNOTATION,
    REPORTS_PATH,
    TRAINER_GROUP,
    Names,
    report_audience,
)

from . import quantity
from .accelerators import AcceleratorNeeds, resolve_accelerator
from .cluster_settings import ClusterSettings
from .containers import CONTAINER, apply_user_template, render_pod_template, secret_env
from .merge import merge_templates
from .storage import add_model, add_run_folder

Object = dict[str, Any]
REQUESTS = {"cpu": "1", "memory": "4Gi"}
# Ray's CPUs only count actors: every agent-loop, reward, server and router actor requests one.
LOGICAL_CPUS = 16
JOB_FOLDER, JOB, OVERRIDES = "/etc/diffusionrl/job", "job.yaml", "overrides.txt"
TOKEN_FOLDER, TOKEN_FILE = "/var/run/secrets/diffusionrl.io/report", "token"
TOKEN_SECONDS = 3600  # the kubelet renews the token before it expires
DRIVER_RESOURCE = "trainer"  # Ray resource that places the training program in a trainer pod


def render_worker_group(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> Object:
    """The entry of `spec.rayClusterSpec.workerGroupSpecs` of a RayJob."""
    trainer, names = job.spec.trainer, Names(job.metadata.name)
    needs = resolve_accelerator(trainer.accelerator, settings)
    labels = names.attempt_labels(attempt)
    variables = [*needs.env, {"name": "DIFFUSIONRL_ATTEMPT", "value": str(attempt)}]
    template = render_pod_template(
        job, settings, labels={**needs.labels, **labels}, env=variables, resources=trainer.resources,
        default_requests=REQUESTS, shared_memory=trainer.shared_memory.size_limit,
        probe={"path": "/api/local_raylet_healthz", "port": 52365},
    )  # fmt: skip
    template = add_model(add_run_folder(template, job), job)
    for part in (_placement(job, needs), _job_folder(), _tracking(job), _reports(job, settings)):
        template = merge_templates(template, part)
    return {
        "groupName": TRAINER_GROUP,
        "replicas": trainer.replicas,
        "minReplicas": trainer.replicas,
        "maxReplicas": trainer.replicas,
        "rayStartParams": {"object-store-memory": str(quantity.whole(trainer.shared_memory.size_limit) // 2)},
        "resources": {
            "CPU": str(_logical_cpus(job)),
            needs.ray_resource: str(needs.count),
            DRIVER_RESOURCE: "1",
        },
        "template": apply_user_template(template, dict(trainer.pod_template), labels),
    }


def _logical_cpus(job: DiffusionRLJob) -> int:
    spec = job.spec
    given = {**spec.trainer.resources.requests, **spec.trainer.resources.limits}.get("cpu", "0")
    count = spec.trainer.accelerator.count
    # What the trainer derives at most in one pod (verl_omni/trainer/process_counts.py, tests/contract).
    loops = spec.rollout.agent_loop.workers or 2 * math.ceil(count / 8)
    rewards = spec.reward.replicas or count
    return max(LOGICAL_CPUS, 2 * count + loops + rewards + 8, quantity.whole(given))


def _placement(job: DiffusionRLJob, needs: AcceleratorNeeds) -> Object:
    scheduling = job.spec.scheduling
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
        "spec": {
            "containers": [{"name": CONTAINER, "volumeMounts": [mount]}],
            "volumes": [{"name": name, **source}],
        }
    }


def _with_env(env: list[Object]) -> Object:
    return {"spec": {"containers": [{"name": CONTAINER, "env": env}]}}
