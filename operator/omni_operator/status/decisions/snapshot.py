"""PURE: a job at one moment of a pass."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from omni_operator.api.status import Condition, Status
from omni_operator.status.condition_value import CHECKPOINT_REQUESTED
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Attempt, Observation
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp

from .timeouts import Timeouts

STEPS_OF_SILENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that decisions and the status depend on. Properties answer what more than one of them asks.

    Attributes:
        facts: from the job's metadata and spec, compared with the attempt.
        status: the last written status.
        observed: the job's children, of all attempts.
        attempt: the newest attempt.
        listening: time since which this process accepts reports.
        changed_by_others: what other clients change again after each correction; empty if they change nothing.
        refused_spec: why no attempt may start with the spec; empty if one may.
        unreadable_spec: errors of a spec that cannot be parsed into a job; empty for others.
    """

    facts: JobFacts
    status: Status
    observed: Observation
    attempt: Attempt
    now: datetime
    timeouts: Timeouts = field(default_factory=Timeouts)
    listening: datetime = EARLIEST
    changed_by_others: str = ""
    refused_spec: str = ""
    unreadable_spec: str = ""

    @property
    def deadline(self) -> datetime | None:
        """End of `spec.activeDeadlineSeconds`; None without it, and before the job has started."""
        started = parse_timestamp(self.status.start_time)
        limit = self.facts.active_deadline
        return started + limit if started and limit is not None else None

    @property
    def suspending(self) -> Condition | None:
        """The condition `Suspended` while a suspension is under way."""
        condition = self.status.condition("Suspended")
        return condition if condition and condition.reason in (CHECKPOINT_REQUESTED, "Stopping") else None

    @property
    def was_stopped(self) -> bool:
        """Whether the operator stopped the last attempt, which did not fail: it was suspended, or is being replaced."""
        admitted = self.status.condition("Admitted")
        replaced = admitted is not None and admitted.reason == "BetweenAttempts"
        return replaced or self.suspending is not None or self.status.is_true("Suspended")

    @property
    def queued_since(self) -> datetime | None:
        """Since when the queue has not admitted the attempt, as far as the status says so."""
        admitted = self.status.condition("Admitted")
        return (self.admitted_at or EARLIEST) if admitted and admitted.reason == "Queued" else None

    @property
    def admitted_at(self) -> datetime | None:
        """The last change of the condition `Admitted`; None if it is not known."""
        admitted = self.status.condition("Admitted")
        return parse_timestamp(admitted.last_transition_time) if admitted else None

    @property
    def suspending_since(self) -> datetime:
        """Begin of a suspension, which may be now."""
        begun = self.suspending
        return (parse_timestamp(begun.last_transition_time) if begun else None) or self.now

    @property
    def failed_at(self) -> datetime | None:
        """When the newest attempt failed, as far as the status says so."""
        failure = next((recorded for recorded in self.status.failures if recorded.attempt == self.attempt.number), None)
        return parse_timestamp(failure.at) if failure else None

    @property
    def completed_at(self) -> datetime:
        """When the job ended, which may be now."""
        return parse_timestamp(self.status.completion_time) or self.now

    @property
    def running_since(self) -> datetime | None:
        """Start of the attempt's trainer, as the status has it."""
        return parse_timestamp(self.status.running_time)

    @property
    def counted_until(self) -> datetime | None:
        """Up to when the status counts the accelerators of the attempt."""
        return parse_timestamp(self.status.usage.counted_time)

    @property
    def trainer_started(self) -> datetime | None:
        """Start of the attempt's trainer; None before, and while KubeRay's clock is ahead of it."""
        rayjob = self.attempt.rayjob
        return rayjob.started if rayjob and rayjob.started and rayjob.started <= self.now else None

    @property
    def heartbeat(self) -> datetime | None:
        """The trainer's last report, to this process or an earlier one, or a later time from which silence counts."""
        report = self.attempt.report
        at = report.at if report else parse_timestamp(self.status.progress.heartbeat_time)
        if at is None:
            return None
        # Silence counts only while the operator listened; a stall that was found before stays.
        listening = EARLIEST if self.status.is_true("ProgressStalled") else self.listening
        return max(at, listening, self.trainer_started or at)  # a queue may start an attempt again after its report

    @property
    def stalls_at(self) -> datetime | None:
        """When the trainer counts as stalled if it does not report before; None before its first report."""
        report = self.attempt.report
        step = (report.step_seconds or 0.0) if report else 0.0
        silence = max(self.timeouts.stall, timedelta(seconds=STEPS_OF_SILENCE * step))
        return self.heartbeat + silence if self.heartbeat else None

    @property
    def weights_expire_at(self) -> datetime | None:
        """When the weights of the last sync are too old; None if none was reported. They age while the trainer runs."""
        synced = self.attempt.report.synced_at if self.attempt.report else None
        return max(synced, self.trainer_started or synced) + self.facts.max_age if synced else None
