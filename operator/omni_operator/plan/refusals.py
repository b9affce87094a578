"""PURE: what makes a valid job impossible on this cluster, in words; a job on one machine may have all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import Violation

from .cluster_settings import ClusterSettings
from .containers import CONTAINER

WANDB_VARIABLES = {"WANDB_API_KEY", "WANDB_MODE"}
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


def find_refusals(job: DiffusionRLJob, settings: ClusterSettings) -> list[Violation]:
    """Every reason not to start the job here; `at` starts below the job."""
    return [*_image(job, settings), *_devices(job, settings), *_storage(job), *_tracking(job), *_queue(job)]


def _image(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    if not (job.spec.runtime.image or settings.image):
        yield Violation(("spec", "runtime", "image"), "must be given: the operator has no default image")


def _devices(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    trainer, parallel = job.spec.trainer, job.spec.rollout.engine.tensor_parallel_size
    given = trainer.accelerator
    if given.vendor in ("NVIDIA", "Ascend") and not (given.resource_name or settings.resource_names.get(given.vendor)):
        yield Violation(
            ("spec", "trainer", "accelerator", "resourceName"),
            f"must be given: the operator's settings have no resource of {given.vendor} devices",
        )
    if given.count % parallel:
        yield Violation(
            ("spec", "rollout", "engine", "tensorParallelSize"),
            f"an engine gets its weights over IPC, so its {parallel} devices must be in one pod, "
            f"which has {given.count}",
        )


def _storage(job: DiffusionRLJob) -> Iterator[Violation]:
    if job.spec.trainer.replicas > 1 and job.spec.checkpoint.claim_name is None:
        yield Violation(
            ("spec", "checkpoint", "claimName"), "must be given with several pods: they write one run folder (RWX)"
        )


def _tracking(job: DiffusionRLJob) -> Iterator[Violation]:
    tracking, template = job.spec.observability.tracking, job.spec.trainer.pod_template
    if "wandb" in tracking.loggers and not tracking.wandb_secret_ref and not WANDB_VARIABLES & _variables(template):
        yield Violation(
            ("spec", "observability", "tracking", "wandbSecretRef"),
            "must be given: wandb needs an API key (or set WANDB_API_KEY or WANDB_MODE in "
            "spec.trainer.podTemplate.spec.containers[ray].env)",
        )


def _variables(template: Mapping[str, Any]) -> set[str]:
    """Names of the variables that a pod template gives the container of Ray."""
    containers = template.get("spec", {}).get("containers", ())
    return {
        entry["name"]
        for container in containers
        if container["name"] == CONTAINER
        for entry in container.get("env", ())
    }


def _queue(job: DiffusionRLJob) -> Iterator[Violation]:
    if KUEUE_QUEUE in job.metadata.labels and job.spec.cleanup_policy != "DeleteCluster":
        yield Violation(
            ("spec", "cleanupPolicy"),
            f"is {job.spec.cleanup_policy}, but Kueue takes back what a job has used: write DeleteCluster",
        )
