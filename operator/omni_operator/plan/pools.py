"""PURE: pools of a job: the trainer's pods, and the separate pods of engines, of a judge and of scorers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import FieldPath
from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP, scorer_group
from omni_operator.api.spec.judge import JudgeModel
from omni_operator.api.spec.platform import PoolScheduling, Scheduling
from omni_operator.api.spec.pods import Accelerator, Resources, SharedMemory
from omni_operator.api.spec.reward import Scorer
from omni_operator.api.spec.rollout import Rollout
from omni_operator.api.spec.scorer_pool import ScorerPool

from .rolled_fields import digest_rolled

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
DRAIN_SECONDS = 60  # default of spec.rollout.drainSeconds, and the value for reward pods
# Ray resource that places the training program in a trainer pod of a job with one pool. Renaming it would make running
# jobs differ from what a new operator renders.
DRIVER_RESOURCE = "trainer"
# Ray resources of the pods of several pools: the `node_resource` of each pool in the trainer's settings names it.
TRAINER_RESOURCE = "omni_trainer"
ROLLOUT_RESOURCE = "omni_rollout"
REWARD_RESOURCE = "omni_reward"


@dataclass(frozen=True, slots=True)
class Pool:
    """Pods of one worker group.

    Attributes:
        group: name of the worker group.
        field: the field of the job's spec that describes it.
        replicas: number of pods.
        live: whether that number may change while an attempt runs.
        drain_seconds: time for a pod that is deleted to finish what it does; 0: none.
        resource: Ray resource that every pod of the pool offers, and no other pod.
        has_accelerators: whether its pods have any; otherwise `accelerator` is the CPU.
        rolled: digest of the fields whose change replaces pods while an attempt runs; empty: none does.
    """

    group: str
    field: FieldPath
    replicas: int
    accelerator: Accelerator
    resources: Resources
    shared_memory: SharedMemory
    scheduling: Scheduling | PoolScheduling
    pod_template: Mapping[str, Any]
    resource: str
    has_accelerators: bool = True
    live: bool = False
    drain_seconds: int = 0
    rolled: str = ""


def pools_of(job: DiffusionRLJob) -> tuple[Pool, ...]:
    """The pools, the trainer's first."""
    trainer = job.spec.trainer
    rollout = job.spec.rollout
    trainer_pool = Pool(
        TRAINER_GROUP,
        ("trainer",),
        trainer.replicas,
        trainer.accelerator,
        trainer.resources,
        trainer.shared_memory,
        job.spec.scheduling,
        trainer.pod_template,
        resource=driver_resource(job),
    )
    pools = [trainer_pool]
    if rollout.separate:
        pools.append(_rollout(job))
    if job.spec.judge_pods:
        pools.append(_judge(job))
    for index, scorer in enumerate(job.spec.reward.scorers):
        if scorer.pool:
            pools.append(_scorer(index, scorer, scorer.pool))
    return tuple(pools)


def _rollout(job: DiffusionRLJob) -> Pool:
    rollout = job.spec.rollout
    live = follows_replicas(rollout, job.metadata.labels)
    return Pool(
        ROLLOUT_GROUP,
        ("rollout",),
        rollout.replicas,
        job.spec.rollout_accelerator,
        rollout.resources or Resources(),
        rollout.shared_memory or SharedMemory(),
        rollout.scheduling or PoolScheduling(),
        rollout.pod_template or {},
        resource=ROLLOUT_RESOURCE,
        live=live,
        rolled=digest_rolled(ROLLOUT_GROUP, rollout) if live else "",
        drain_seconds=DRAIN_SECONDS if rollout.drain_seconds is None else rollout.drain_seconds,
    )


def _judge(job: DiffusionRLJob) -> Pool:
    judge = job.spec.reward.model
    assert judge is not None
    live = follows_judges(judge, job.metadata.labels)
    return Pool(
        REWARD_GROUP,
        ("reward", "model"),
        judge.replicas,
        job.spec.judge_accelerator,
        judge.resources or Resources(),
        judge.shared_memory or SharedMemory(),
        judge.scheduling or PoolScheduling(),
        judge.pod_template or {},
        resource=REWARD_RESOURCE,
        live=live,
        rolled=digest_rolled(REWARD_GROUP, judge) if live else "",
        drain_seconds=DRAIN_SECONDS,
    )


def _scorer(place: int, scorer: Scorer, pool: ScorerPool) -> Pool:
    return Pool(
        scorer_group(scorer.name),
        ("reward", "scorers", place, "pool"),
        pool.replicas,
        pool.accelerator or Accelerator.model_construct(vendor="CPU"),
        pool.resources or Resources(),
        pool.shared_memory or SharedMemory(),
        pool.scheduling or PoolScheduling(),
        pool.pod_template or {},
        resource=scorer_resource(scorer.name),
        has_accelerators=pool.accelerator is not None,
    )


def scorer_resource(scorer: str) -> str:
    """Ray resource of the pods of a scorer."""
    return f"omni_scorer_{scorer}"


def follows_replicas(rollout: Rollout, labels: Mapping[str, str]) -> bool:
    """Whether a running attempt follows changes of `spec.rollout.replicas`.

    In a Kueue queue it does not: the queue has admitted the pods of the attempt, and would not see those added to it.
    """
    return rollout.separate and KUEUE_QUEUE not in labels


def follows_judges(judge: JudgeModel | None, labels: Mapping[str, str]) -> bool:
    """Whether a running attempt follows changes of `spec.reward.model.replicas`; see `follows_replicas`."""
    return judge is not None and judge.separate and KUEUE_QUEUE not in labels


def driver_resource(job: DiffusionRLJob) -> str:
    """Ray resource of the pods that the training program may run in."""
    return TRAINER_RESOURCE if job.spec.has_pools else DRIVER_RESOURCE
