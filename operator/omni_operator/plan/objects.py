"""PURE: all objects that the operator applies for a job, in order."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel

from omni_operator.api import API_VERSION, KIND, DiffusionRLJob
from omni_operator.api.names import (
    CHECKSUM_ANNOTATION,
    JOB_ANNOTATION,
    OVERRIDES_ANNOTATION,
    PODS_ANNOTATION,
    RENDERED_ANNOTATION,
    REWARD_GROUP,
    ROLLOUT_GROUP,
    SPEC_ANNOTATION,
    Names,
)

from .cluster_settings import ClusterSettings
from .digest import compute_digest, digest_checked
from .entrypoint import render_entrypoint, render_pod_overrides, resolve_for_pods
from .hidden_values import hide_values
from .network_policy import render_network_policy
from .pod_monitor import render_pod_monitor
from .pools import KUEUE_QUEUE, follows_judges, follows_replicas, pools_of
from .queues import scheduler_entries
from .rayjob import render_ray_job
from .rolled_fields import without_rolled
from .run_layout import resolve_paths

Object = dict[str, Any]
Part = TypeVar("Part", bound=BaseModel)
# Fields of the spec that the operator reads in each pass, and no pod.
OF_PASSES = (
    "suspend",
    "managed_by",
    "pre_running_deadline_seconds",
    "backoff_limit",
    "disruption_limit",
    "failure_policy",
    "ttl_seconds_after_finished",
)


def render_objects(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> list[Object]:
    """All objects, in the order to apply."""
    return [*render_job_objects(job, settings), render_attempt(job, attempt, settings)]


def render_job_objects(job: DiffusionRLJob, settings: ClusterSettings) -> list[Object]:
    """Objects of the whole job; the operator corrects changes by others."""
    labels = Names(job.metadata.name).labels()
    objects = [render_network_policy(job, settings), render_pod_monitor(job)]
    return [_complete(body, job, labels) for body in objects if body is not None]


def render_attempt(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> Object:
    """The RayJob of an attempt, which is created once and never changed.

    The job and its overrides are annotations of the trainer pods, which mount them as files: an attempt is one object.
    The digest leaves them out, because fields of the job that do not concern pods may change while they run. The
    numbers of pods and accelerators are an annotation, too: the job may be edited, and the attempt keeps them.
    """
    body = _render_pods(job, attempt, settings, render_entrypoint(*resolve_for_pods(job)))
    changes = _without_live(job) is not job
    _add_digest(body, digest_attempt(job, attempt, settings) if changes else compute_digest(body))
    body["metadata"]["annotations"] |= {
        PODS_ANNOTATION: json.dumps(_count_pods(job)),
        SPEC_ANNOTATION: digest_spec(job),
    }
    body["metadata"]["annotations"][CHECKSUM_ANNOTATION] = digest_checked(body)
    trainer, *_ = body["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    metadata = trainer["template"]["metadata"]
    metadata["annotations"] = {**metadata.get("annotations", {}), **render_files(job, attempt)}
    return body


def render_files(job: DiffusionRLJob, attempt: int) -> dict[str, str]:
    """The job and its overrides, by the annotation of the trainer pods that has them."""
    from .yaml_writer import dump_yaml  # imports PyYAML, which `drl validate --cluster` of a small job does not need

    resolved, layout = resolve_for_pods(job)
    named = resolve_paths(job, job.spec.runtime.working_dir)  # its models have their ids and URLs
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.metadata.name},
        "spec": named.spec.model_dump(by_alias=True, mode="json", exclude_defaults=True),
    }
    hide_values(document)
    return {
        JOB_ANNOTATION: f"# Attempt {attempt}, in {layout.run_folder}.\n{dump_yaml(document)}",
        OVERRIDES_ANNOTATION: "".join(f"{line}\n" for line in render_pod_overrides(resolved, layout)),
    }


def _count_pods(job: DiffusionRLJob) -> dict[str, dict[str, int]]:
    """What the status needs of the pods that an attempt was created with; `cluster/cache/object_parser.py` reads it."""
    counted = job.spec.uses_accelerators
    counts: dict[str, dict[str, int]] = {}
    for pool in pools_of(job):
        accelerators = pool.accelerator.count if counted and pool.has_accelerators else 0
        counts[pool.group] = {"pods": pool.replicas, "accelerators": accelerators}
    if ROLLOUT_GROUP in counts:
        rollout = job.spec.rollout
        counts[ROLLOUT_GROUP]["least"] = rollout.min_replicas or 1
        if KUEUE_QUEUE in job.metadata.labels and rollout.min_replicas not in (None, rollout.replicas):
            # What the attempt may ask its Kueue queue for.
            counts[ROLLOUT_GROUP] |= {"fewest": rollout.min_replicas, "most": rollout.replicas}
    return counts


def digest_attempt(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> str:
    """The digest of an attempt, without the files of its pods, which take most of the time of rendering it."""
    job = _without_live(job)
    return compute_digest(_render_pods(job, attempt, settings, render_entrypoint(*resolve_for_pods(job))))


def digest_spec(job: DiffusionRLJob) -> str:
    """Hash of the spec fields, and of the scheduler's labels and annotations, that determine an attempt's pods.

    Unlike the hash of a rendered attempt, it does not depend on the operator's version and settings.
    """
    labels, annotations = (scheduler_entries(fields) for fields in (job.metadata.labels, job.metadata.annotations))
    spec = _without_live(job).spec
    reward = spec.reward
    judge = spec.reward.model
    determining = spec.model_copy(
        update={
            "rollout": _with_defaults(spec.rollout, "autoscaling", "update_strategy", "staleness"),
            "reward": reward.model_copy(
                update={"model": judge and _with_defaults(judge, "autoscaling", "update_strategy")}
            ),
            "security": _with_defaults(spec.security, "network_policy"),
            "observability": _with_defaults(spec.observability, "pod_monitor"),
        }
    )
    determining = _with_defaults(determining, *OF_PASSES)
    fields = determining.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    return compute_digest({"spec": fields, "labels": labels, "annotations": annotations})


def _with_defaults(part: Part, *names: str) -> Part:
    """A part of a spec with the defaults of some fields."""
    return part.model_copy(update={name: type(part).model_fields[name].get_default() for name in names})


def _without_live(job: DiffusionRLJob) -> DiffusionRLJob:
    """The job without what may change while an attempt runs, which makes no other attempt."""
    rollout = job.spec.rollout
    reward = job.spec.reward
    changed: dict[str, Any] = {}
    if follows_replicas(rollout, job.metadata.labels):
        least = {"replicas": rollout.min_replicas or 1}
        changed["rollout"] = without_rolled(ROLLOUT_GROUP, rollout).model_copy(update=least)
    if reward.model is not None and follows_judges(reward.model, job.metadata.labels):
        model = without_rolled(REWARD_GROUP, reward.model).model_copy(update={"replicas": 1})
        changed["reward"] = reward.model_copy(update={"model": model})
    return job.model_copy(update={"spec": job.spec.model_copy(update=changed)}) if changed else job


def _render_pods(job: DiffusionRLJob, attempt: int, settings: ClusterSettings, entrypoint: str) -> Object:
    """The RayJob of an attempt without the files of its pods, and without a digest."""
    labels = Names(job.metadata.name).attempt_labels(attempt)
    return _own(render_ray_job(job, attempt, settings, entrypoint), job, labels)


def _complete(body: Object, job: DiffusionRLJob, labels: dict[str, str]) -> Object:
    """Add namespace, labels, owner, and the digest of the object."""
    completed = _own(body, job, labels)
    _add_digest(completed, compute_digest(completed))
    return completed


def _own(body: Object, job: DiffusionRLJob, labels: dict[str, str]) -> Object:
    """Add namespace, labels and owner."""
    metadata = body["metadata"]
    metadata["namespace"] = job.metadata.namespace or "default"
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    if job.metadata.uid:
        metadata["ownerReferences"] = [owner_reference(job.metadata.name, job.metadata.uid)]
    return body


def owner_reference(name: str, uid: str) -> Object:
    """Reference to the job that controls an object."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def _add_digest(body: Object, digest: str) -> None:
    metadata = body["metadata"]
    metadata["annotations"] = {**metadata.get("annotations", {}), RENDERED_ANNOTATION: digest}
