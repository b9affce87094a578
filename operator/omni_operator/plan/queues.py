"""PURE: what a job has for the scheduler whose queue it is in: its labels, and pods that save before they end."""

from __future__ import annotations

from typing import Any

from omni_operator.api import DiffusionRLJob

from .containers import pre_stop

Object = dict[str, Any]
# Schedulers read labels and annotations of these groups from the RayJob (queue, gang).
SCHEDULERS = (
    "kueue.x-k8s.io/", "volcano.sh/", "scheduling.volcano.sh/", "kai.scheduler/", "runai/", "yunikorn.apache.org/",
    "scheduling.k8s.io/",
)  # fmt: skip
SCHEDULER_KEYS = frozenset({
    "ray.io/scheduler-name", "ray.io/priority-class-name", "ray.io/gang-scheduling-enabled", "applicationId", "queue",
    "ring-controller.atlas", "fault-scheduling",
})  # fmt: skip
SAVE_PROGRAM = "verl_omni.utils.save_before_stop"


def scheduler_entries(entries: dict[str, str]) -> dict[str, str]:
    """Labels or annotations that schedulers read from the RayJob."""
    return {name: value for name, value in entries.items() if name.startswith(SCHEDULERS) or name in SCHEDULER_KEYS}


def save_before_stop(job: DiffusionRLJob) -> Object:
    """A hook of the head's and the trainer's pods, by which a preempted job saves a checkpoint first.

    A queue preempts a job by deleting its pods, and the operator is not asked before. Pods of a job that is in no queue
    end at once, as those of a job that is deleted should.
    """
    policy = job.spec.suspend_policy
    patient = policy.mode == "CheckpointThenSuspend" and policy.grace_seconds > 0
    if not (patient and scheduler_entries(job.metadata.labels) and job.spec.keeps_results):
        return {}
    return pre_stop(SAVE_PROGRAM, policy.grace_seconds)
