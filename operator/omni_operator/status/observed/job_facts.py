"""PURE: the facts about a job that decisions depend on."""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.status.reasons.names import Action


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `spec.failurePolicy`; the first rule with the reason of the failure applies."""

    reasons: frozenset[str]
    action: Action


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """`autoscaling` of `spec.rollout` or `spec.reward.model`.

    Attributes:
        least, most: numbers of pods.
        share: samples or requests for one pod, of those that wait.
        window: how long fewer pods must have been enough before any is removed.
    """

    least: int
    most: int
    share: int
    window: timedelta

    def pods_for(self, waiting: int) -> int:
        """How many pods a queue needs, within the limits."""
        return min(max(math.ceil(waiting / self.share), self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The trainer's, the rollout or the reward pods of a job.

    Attributes:
        group: name of the worker group.
        pods: number of pods; 0 where engines or judge run in the trainer's pods, or there is no judge.
        accelerators: accelerators of one pod.
        live: whether the running attempt follows changes of `replicas`, or autoscaling.
        autoscaling: None: the spec sets the number of pods.
    """

    group: str
    pods: int = 0
    accelerators: int = 0
    live: bool = False
    autoscaling: Autoscaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingUpdate:
    """`updateStrategy` of `spec.rollout` or `spec.reward.model`, and what it applies to.

    Attributes:
        group: name of the worker group.
        template: digest of the pod template that the spec gives.
        most_unavailable: pods of the group that may be missing because they are being replaced.
        deadline: how long new pods may take to serve.
        paused: name of the annotation that pauses the replacement; empty: it is not paused.
    """

    group: str
    template: str
    most_unavailable: int = 1
    deadline: timedelta = timedelta(minutes=30)
    paused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts about a job, from its metadata and spec.

    A running attempt keeps what it was created with; `running_pods.as_running` has the facts about its pods.

    Attributes:
        grace: how long a suspension waits for a checkpoint; None: it requests none.
        trainer: the trainer's pods.
        rollouts, judges: the pods that a running attempt may gain and lose.
        scorers: the pods of scorers with a pool.
        least_rollout_pods: with fewer, the trainer waits.
        fewest_at_start: number of rollout pods that an attempt needs to start if others find no node; 0: all.
        held: the running attempt keeps pods that differ from the spec's: its queue has admitted them, or its trainer
            works with them and has an earlier spec or comes from another version of the operator.
        outdated: the newest attempt differs from the spec in fields that cannot change while it runs.
        rolling: one for each group whose pods a change of the spec replaces in the running attempt.
        max_lag: versions that an engine may be behind the trainer.
        max_age: time since the last weight sync after which weights are too old.
        keeps_results: the run folder outlives the pods.
        sends_output: results are sent to a store.
        vendor: vendor of the accelerators; None if the job does not name it.
        retain: `cleanupPolicy: Retain`: what an attempt leaves is kept for inspection.
        complete: False if fields of the spec are invalid and replaced by defaults.
    """

    uid: str
    generation: int
    created: datetime
    suspend: bool = False
    grace: timedelta | None = None
    active_deadline: timedelta | None = None
    running_deadline: timedelta | None = None
    backoff_limit: int = 0
    disruption_limit: int = 20
    rules: tuple[Rule, ...] = ()
    ttl: timedelta | None = None
    retain: bool = False
    trainer: PoolFacts = PoolFacts(group=TRAINER_GROUP, pods=1)
    rollouts: PoolFacts = PoolFacts(group=ROLLOUT_GROUP)
    judges: PoolFacts = PoolFacts(group=REWARD_GROUP)
    scorers: tuple[PoolFacts, ...] = ()
    least_rollout_pods: int = 0
    fewest_at_start: int = 0
    held: bool = False
    outdated: bool = False
    rolling: tuple[RollingUpdate, ...] = ()
    total_steps: int | None = None
    max_lag: int = 1
    max_age: timedelta = timedelta(hours=1)
    keeps_results: bool = True
    sends_output: bool = False
    vendor: str | None = None
    complete: bool = True

    @property
    def pools(self) -> tuple[PoolFacts, ...]:
        """The rollout and the reward pods."""
        return self.rollouts, self.judges


def without_pods(facts: JobFacts) -> JobFacts:
    """Facts of a job with an invalid spec: its attempt keeps its pods, whatever the valid fields say of them."""
    rollouts, judges = (replace(pool, live=False) for pool in facts.pools)
    return replace(facts, complete=False, rolling=(), rollouts=rollouts, judges=judges)
