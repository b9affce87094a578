"""PURE: times at which the status of a job changes without an event."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from omni_operator.api.status import Status
from omni_operator.status.decisions.situation import Active, Situation
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Observation

from .job_status import Context, find_heartbeat


def find_deadlines(
    facts: JobFacts, situation: Situation, status: Status, observed: Observation, context: Context
) -> Iterator[datetime]:
    """When a running job is stalled, its weights are too old, or it has started by a clock that is ahead.

    Args:
        status: as derived from the situation.
    """
    if not isinstance(situation, Active):
        return
    rayjob = observed.rayjob(status.attempts)
    if rayjob and rayjob.started and rayjob.started > context.now:
        yield rayjob.started
    report = observed.report_of(status.attempts)
    stalled = status.condition("ProgressStalled")
    heartbeat = find_heartbeat(facts, status, observed, status.attempts, context)
    if heartbeat.at and stalled and stalled.status == "False":
        yield heartbeat.at + heartbeat.silence
    if report and report.synced_at and status.is_true("WeightsInSync"):
        yield heartbeat.synced(report.synced_at) + heartbeat.max_age
