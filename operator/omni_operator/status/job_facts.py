"""PURE: the few things about a job that decisions rest on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from .reasons import Action, FailureReason


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `spec.failurePolicy`: the first whose reasons hold the failure's decides."""

    reasons: frozenset[str]
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What decisions read of a job.

    Attributes:
        deleting: `metadata.deletionTimestamp`.
        has_finalizer: our finalizer is on it.
        grace: how long a suspension waits for a checkpoint; None: it does not ask for one.
        devices: accelerators that a running attempt holds.
        workers: pods besides the head.
        max_lag: versions that an engine may be behind the trainer.
        max_age: how long ago the engines' weights may have been sent.
        keeps_results: the run folder outlives the pods.
        vendor: of the accelerators; None: the job does not say.
        retain: `cleanupPolicy: Retain`: what an attempt leaves is kept for inspection.
    """

    uid: str
    generation: int
    created: datetime
    deleting: datetime | None = None
    has_finalizer: bool = False
    suspend: bool = False
    grace: timedelta | None = None
    active_deadline: timedelta | None = None
    running_deadline: timedelta | None = None
    backoff_limit: int = 0
    rules: tuple[Rule, ...] = ()
    ttl: timedelta | None = None
    retain: bool = False
    devices: int = 0
    workers: int = 1
    total_steps: int | None = None
    max_lag: int = 1
    max_age: timedelta = timedelta(hours=1)
    keeps_results: bool = True
    vendor: str | None = None


def action_for(facts: JobFacts, reason: FailureReason) -> Action:
    """The action that the job's rules name for a failure; `Retry` where none does.

    A child that somebody deleted is no failure of the job, so it is made again without being counted.
    """
    if reason is FailureReason.CHILD_DELETED:
        return Action.RETRY_IGNORE_LIMIT
    return next((rule.action for rule in facts.rules if reason.value in rule.reasons), Action.RETRY)
