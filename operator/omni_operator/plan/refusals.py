"""PURE: why the operator refuses a valid job on this cluster, and what it warns of."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import FieldPath, Violation
from omni_operator.api.job import NO_VENDOR, RESULTS_LOST
from omni_operator.api.names import TRAINER_GROUP
from omni_operator.api.spec.pod_template import drop_nulls
from omni_operator.api.validation_messages import format_path

from .cluster_settings import ClusterSettings
from .objects import render_files
from .pod_refusals import find_invalid_pods, find_policy_refusals
from .pods.containers import CONTAINER, SHARED_MEMORY, image_of_template
from .pods.storage import (
    HUB_ENDPOINT,
    HUB_OFFLINE,
    HUB_TOKEN,
    MODELS,
    OUTPUT,
    RUNS,
    endpoint_problem,
    is_offline,
    trainer_variables,
)
from .pools import KUEUE_QUEUE, Pool, pools_of
from .queues import ELASTIC_JOB
from .recipe_lint import find_risks, find_unused

OUR_VOLUMES = {RUNS, MODELS, OUTPUT, SHARED_MEMORY}  # the operator mounts these itself
WANDB_VARIABLES = {"WANDB_API_KEY", "WANDB_MODE"}
# Kubernetes limits the annotations of a pod to 256 KiB; 16 KiB are left for KubeRay, Kueue and others.
ANNOTATIONS_BYTES = 240 * 1024
# YAML may take ten times the bytes of JSON: of a list at depth 12, by its indentation. Not more, so most specs fit.
SMALL_SPEC_BYTES = ANNOTATIONS_BYTES // 16
# maxItems of podSets in the Workload of Kueue 0.19.2. In 0.17.0 it is 8: there Kueue's webhook refuses a RayJob with
# more, which the job's condition says.
QUEUE_POD_SETS = 18


def find_refusals(job: DiffusionRLJob, settings: ClusterSettings) -> list[Violation]:
    """All reasons to refuse the job; `at` is relative to the job."""
    return [
        *_size(job),
        *_image(job, settings),
        *_accelerators(job),
        *_storage(job),
        *_hub(job),
        *_claims(job),
        *_tracking(job),
        *_queue(job),
        *find_invalid_pods(job, settings),
        *find_policy_refusals(job, settings),
    ]


def describe_refusals(job: DiffusionRLJob, settings: ClusterSettings) -> str | None:
    """Why the operator starts no attempt of the job, in one line; None if it does."""
    refusals = find_refusals(job, settings)
    return "; ".join(f"{format_path(violation.at)}: {violation.text}" for violation in refusals) or None


def _size(job: DiffusionRLJob) -> Iterator[Violation]:
    size = len(job.spec.model_dump_json(by_alias=True, exclude_defaults=True).encode())
    if SMALL_SPEC_BYTES < size <= ANNOTATIONS_BYTES:
        user: Mapping[str, str] = drop_nulls(job.spec.trainer.pod_template).get("metadata", {}).get("annotations", {})
        annotations = {**user, **render_files(job, 1)}
        size = sum(len(name.encode()) + len(text.encode()) for name, text in annotations.items())
    if size > ANNOTATIONS_BYTES:
        yield Violation(
            ("spec",),
            f"takes {size} bytes, with the annotations of the trainer's podTemplate: at most {ANNOTATIONS_BYTES}, "
            "because pods carry it as YAML in an annotation; put long texts into files of a volume",
        )


def _image(job: DiffusionRLJob, settings: ClusterSettings) -> Iterator[Violation]:
    if not (job.spec.runtime.image or settings.image):
        yield Violation(
            ("spec", "runtime", "image"), "must be given: the operator has no default image (jobs.image of the chart)"
        )


def _accelerators(job: DiffusionRLJob) -> Iterator[Violation]:
    pools = pools_of(job)
    parallel = job.spec.rollout.engine.tensor_parallel_size
    count = job.spec.trainer.accelerator.count
    if not job.spec.rollout.separate and count % parallel:
        yield Violation(
            ("spec", "rollout", "engine", "tensorParallelSize"),
            f"is {parallel}: must divide spec.trainer.accelerator.count, which is {count}, because the accelerators of "
            "an engine must be in one pod",
        )
    yield from _images_of_vendors(pools)


def _images_of_vendors(pools: tuple[Pool, ...]) -> Iterator[Violation]:
    """Pools of another vendor than the trainer's without an image of their own."""
    trainer, *others = pools
    for pool in others:
        if not pool.has_accelerators:
            continue  # an image for accelerators also runs on the CPU
        if pool.accelerator.vendor != trainer.accelerator.vendor and not image_of_template(pool.pod_template):
            yield Violation(
                ("spec", *pool.field, "podTemplate"),
                f"must name the image of container {CONTAINER}, for {pool.accelerator.vendor}: the image of the job is "
                f"for {trainer.accelerator.vendor}, the vendor of spec.trainer.accelerator",
            )


def _storage(job: DiffusionRLJob) -> Iterator[Violation]:
    if job.spec.trainer.replicas > 1 and job.spec.checkpoint.claim_name is None:
        yield Violation(
            ("spec", "checkpoint", "claimName"),
            "must be given with several trainer pods: they share one run folder (ReadWriteMany)",
        )
    folder = job.spec.output.folder if job.spec.output else None
    if folder == job.spec.checkpoint.path:
        yield Violation(("spec", "output", "url"), "is spec.checkpoint.path: write another folder")
    elif job.spec.output and folder and not job.spec.output.claim_name and not _mounted(job, folder):
        yield Violation(
            ("spec", "output", "claimName"),
            f"must be given: {folder} is in the pod, and is deleted with it; name a claim, or mount a volume there",
        )


def _hub(job: DiffusionRLJob) -> Iterator[Violation]:
    """What keeps the trainer from sending results to the hub."""
    if not job.spec.sends_to_hub:
        return
    variables = trainer_variables(job)
    if not job.spec.storage.secret_name and HUB_TOKEN not in variables:
        yield Violation(
            ("spec", "storage", "secretName"),
            f"must be given: the hub takes results only with a token; name a Secret with the key {HUB_TOKEN}",
        )
    if is_offline(variables.get(HUB_OFFLINE)):
        yield Violation(
            ("spec", "output", "url"),
            f"is on the hub, and spec.trainer.podTemplate sets {HUB_OFFLINE}={variables[HUB_OFFLINE]}: "
            "remove the variable",
        )
    if problem := endpoint_problem(job, variables.get(HUB_ENDPOINT)):
        yield Violation(("spec", "storage", "endpoint"), f"{problem} (in spec.trainer.podTemplate)")


def _mounted(job: DiffusionRLJob, folder: str) -> bool:
    """Whether the author's template mounts a volume at the folder or above it."""
    spec: Mapping[str, Any] = drop_nulls(job.spec.trainer.pod_template).get("spec", {})
    mounts = [mount for container in spec.get("containers", ()) for mount in container.get("volumeMounts", ())]
    return any(PurePosixPath(folder).is_relative_to(str(mount.get("mountPath"))) for mount in mounts)


def _claims(job: DiffusionRLJob) -> Iterator[Violation]:
    """Claims of a pod template that no container mounts."""
    templates = [(("head",), job.spec.head.pod_template), *((pool.field, pool.pod_template) for pool in pools_of(job))]
    for field, template in templates:
        spec: Mapping[str, Any] = drop_nulls(template).get("spec", {})
        containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
        mounted = {mount.get("name") for container in containers for mount in container.get("volumeMounts", ())}
        for index, volume in enumerate(spec.get("volumes", ())):
            if "persistentVolumeClaim" in volume and volume["name"] not in mounted | OUR_VOLUMES:
                yield Violation(
                    ("spec", *field, "podTemplate", "spec", "volumes", index),
                    f"no container mounts {volume['name']!r}: add it to the volumeMounts of the container "
                    f"{CONTAINER!r}, or remove it",
                )


def find_warnings(job: DiffusionRLJob) -> list[Violation]:
    """Warnings for the author of a job on a cluster, which runs all the same."""
    warnings = []
    if not job.spec.keeps_results and not job.spec.output:
        warnings.append(Violation(("spec", "checkpoint", "claimName"), RESULTS_LOST))
    if job.spec.trainer.accelerator.vendor is None:
        warnings.append(Violation(("spec", "trainer", "accelerator", "vendor"), NO_VENDOR))
    return [*warnings, *find_unused(job), *find_risks(job)]


def _tracking(job: DiffusionRLJob) -> Iterator[Violation]:
    tracking = job.spec.observability.tracking
    if (
        "wandb" in tracking.loggers
        and not tracking.wandb_secret_ref
        and not WANDB_VARIABLES & trainer_variables(job).keys()
    ):
        yield Violation(
            ("spec", "observability", "tracking", "wandbSecretRef"),
            "must be given: wandb needs an API key (or set WANDB_API_KEY or WANDB_MODE in "
            "spec.trainer.podTemplate.spec.containers[ray].env)",
        )


def _queue(job: DiffusionRLJob) -> Iterator[Violation]:
    """What a Kueue queue would never admit. The CRD has no rules for it, because they cannot read labels."""
    elastic = job.metadata.annotations.get(ELASTIC_JOB) == "true"
    pools = pools_of(job)
    if KUEUE_QUEUE not in job.metadata.labels:
        if elastic:
            yield Violation(
                ("metadata", "annotations"),
                f"{ELASTIC_JOB} needs the label {KUEUE_QUEUE}, the name of a queue: without a queue, Kueue holds the "
                "pods back forever",
            )
        return
    if job.spec.cleanup_policy != "DeleteCluster":
        yield Violation(
            ("spec", "cleanupPolicy"),
            f"is {job.spec.cleanup_policy}: must be DeleteCluster in a Kueue queue, which counts only deleted pods as "
            f"free",
        )
    for pool in pools:
        topology = pool.scheduling.topology
        if elastic and (topology.required or topology.preferred):
            field: FieldPath = () if pool.group == TRAINER_GROUP else pool.field
            yield Violation(
                ("spec", *field, "scheduling", "topology"),
                f"cannot be combined with the annotation {ELASTIC_JOB}: Kueue places no pods by topology whose number "
                "changes; remove one of them",
            )
    groups = ["head", *(pool.group for pool in pools)]  # KubeRay submits over HTTP, without a pod
    if len(groups) > QUEUE_POD_SETS:
        pooled = sum(scorer.pool is not None for scorer in job.spec.reward.scorers)
        yield Violation(
            ("spec", "reward", "scorers"),
            f"{pooled} scorers have a pool, and the job has {len(groups)} groups of pods ({', '.join(groups)}): a "
            f"Kueue queue admits at most {QUEUE_POD_SETS}; remove pool from {len(groups) - QUEUE_POD_SETS} of them",
        )
