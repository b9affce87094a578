"""PURE: reports of trainers.

A report is one event of the run folder's `progress.jsonl`:
`{"event": "step", "step": 7, "reward/mean": 0.4, "weights/version": 7, "timing_s/sync": 0.2, ...}`.
Types are strict and every value is bounded here, so that later code can calculate with it and write it to the status.
Unknown fields are ignored, so a newer trainer can report to an older operator.
"""

import json
from dataclasses import fields, replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from omni_operator.api.status import COUNT_LIMIT, WARNINGS_KEPT, TrainerWarning
from omni_operator.status.reasons.names import FailureReason
from omni_operator.status.reasons.table import reasons_shown

from . import evidence
from .observation import TrainerReport
from .queue_history import add_peak
from .timestamps import format_timestamp

Count = Annotated[int, Field(ge=0, le=COUNT_LIMIT)]
Number = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]  # seconds, or a rate per second
Line = Annotated[str, StringConstraints(max_length=1024)]
Key = Annotated[str, StringConstraints(max_length=63)]
Host = Annotated[str, StringConstraints(max_length=64)]
REPLICAS_LIMIT = 1024
SCORERS_LIMIT = 32
# The only reasons of failures that a trainer may name; the operator itself observes the others.
TRAINER_REASONS: frozenset[FailureReason] = frozenset(
    {
        "OutOfMemory",
        "AcceleratorFault",
        "CollectiveTimeout",
        "WeightSyncFailed",
        "InvalidConfig",
        "ApplicationError",
        "WorkerLost",
        "OutputNotSent",
    }
)
_FAILURES = {str(reason): reason for reason in TRAINER_REASONS}
OUTPUT_NOT_SENT = "OutputNotSent"
WARNING_REASONS = reasons_shown("warning")
OTHER_WARNING = "Warning"
NAME_LIMIT = 255


class ReportEvent(BaseModel):
    """An event of a trainer. Its `attempt` is not used: a report counts for the attempt of the pod that sends it."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    attempt: Count | None = None
    event: Literal[
        "start",
        "phase",
        "step",
        "checkpoint",
        "adapter",
        "output",
        "heartbeat",
        "warning",
        "error",
        "stopped",
        "done",
    ]
    step: Count | None = None
    total_steps: Count | None = None
    reward_mean: Number | None = Field(default=None, alias="reward/mean")
    validation_reward: Number | None = Field(default=None, alias="val/reward/mean")
    held_out_scores: Annotated[dict[Key, Number | None], Field(max_length=SCORERS_LIMIT)] | None = Field(
        default=None, alias="val/held_out_scores"
    )
    version: Count | None = Field(default=None, alias="weights/version")
    min_version: Count | None = Field(default=None, alias="weights/min_replica_version")
    max_version: Count | None = Field(default=None, alias="weights/max_replica_version")
    images_per_second: Amount | None = Field(default=None, alias="images_per_s")
    sync_seconds: Amount | None = Field(default=None, alias="timing_s/sync")
    step_seconds: Amount | None = Field(default=None, alias="timing_s/step")
    eta_s: Amount | None = None
    samples: Count | None = None
    unscored: Count | None = None
    queued: Count | None = Field(default=None, alias="rollout/queued_samples")
    judge_queued: Count | None = Field(default=None, alias="reward/queued_requests")
    replica_versions: Annotated[dict[Host, Count], Field(max_length=REPLICAS_LIMIT)] | None = Field(
        default=None, alias="rollout/replica_versions"
    )
    judge_versions: Annotated[dict[Host, Count], Field(max_length=REPLICAS_LIMIT)] | None = Field(
        default=None, alias="reward/replica_versions"
    )
    images_folder: Annotated[str, StringConstraints(pattern=r"^samples/step_[0-9]{1,15}$")] | None = None
    text: Line | None = None
    path: Annotated[str, StringConstraints(max_length=4096)] | None = None
    url: Line | None = None
    message: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    reason: Annotated[str, StringConstraints(max_length=64)] | None = None

    @field_validator("path")
    @classmethod
    def _names_a_folder(cls, path: str | None) -> str | None:
        if path is None:
            return path
        name = PurePosixPath(path).name
        if name in ("", "..") or len(name) > NAME_LIMIT or not name.isprintable():
            raise ValueError(f"the last part must be a name of 1 to {NAME_LIMIT} printable characters")
        return path


# Fields that an event and a report have in common, except those that are merged otherwise.
_TAKEN_OVER = {field.name for field in fields(TrainerReport)} & {*ReportEvent.model_fields} - {
    "attempt",
    "held_out_scores",
}


def parse_event(data: bytes) -> ReportEvent:
    """Parse the body of a report.

    Raises:
        ValueError: it is not JSON in UTF-8, or not valid.
    """
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return ReportEvent.model_validate(body)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def merge_event(previous: TrainerReport | None, event: ReportEvent, attempt: int, now: datetime) -> TrainerReport:
    """Merge an event of an attempt into the newest report; within an attempt, fields that it does not have stay."""
    base = previous if previous and previous.attempt == attempt else TrainerReport(attempt=attempt, at=now)
    values: dict[str, Any] = {name: value for name in _TAKEN_OVER if (value := getattr(event, name)) is not None}
    if event.held_out_scores is not None:
        known = {scorer: score for scorer, score in event.held_out_scores.items() if score is not None}
        values["held_out_scores"] = {**(base.held_out_scores or {}), **known}
    if event.event == "start":
        # A queue may stop an attempt and start it again: what the trainer said before is no reason of a later failure.
        values.update(samples=0, unscored=0, error=None, error_kind=None)
    if event.event in ("phase", "step", "done"):
        values["phase"] = evidence.shorten(event.text or "", 1024) if event.event == "phase" else None
    if event.eta_s is not None:
        values["eta_seconds"] = event.eta_s
    if event.sync_seconds is not None and event.version is not None:
        values["synced_at"] = now
    if event.queued is not None:
        values["queue"] = add_peak(base.queue, event.queued, now)
    if event.judge_queued is not None:
        values["judge_queue"] = add_peak(base.judge_queue, event.judge_queued, now)
    if event.replica_versions is not None:
        values["replicas"] = event.replica_versions
    if event.judge_versions is not None:
        values["judges"] = event.judge_versions
    if event.event == "checkpoint" and event.path:
        name = PurePosixPath(event.path).name
        step = event.step if event.step is not None else _step_of(name)
        values.update(checkpoint=name, checkpoint_at=now, checkpoint_step=step)
        values.pop("step", None)  # the step of the checkpoint, which may be older
    if event.event == "output":
        what = "report" if event.step is None else f"results of step {event.step}"
        values.update(output=f"{what} in {event.url or 'the store'}", output_failed=None)
        values.pop("step", None)
    if event.event == "done":
        values["eta_seconds"] = 0.0
    if event.event == "error":
        values["error"] = evidence.shorten(event.message or "the trainer reported no message")
        values["error_kind"] = _FAILURES.get(event.reason or "")
    if event.event == "warning":
        values["warnings"] = _add_warning(base.warnings, event, attempt, now)
    if event.event in ("warning", "error") and event.reason == OUTPUT_NOT_SENT:
        values["output_failed"] = evidence.shorten(event.message or "the trainer reported no message")
    return replace(base, at=now, **values)


def _add_warning(
    kept: tuple[TrainerWarning, ...], event: ReportEvent, attempt: int, now: datetime
) -> tuple[TrainerWarning, ...]:
    """The warnings with this one instead of an earlier one with its reason; an unknown reason becomes part of it."""
    known = event.reason in WARNING_REASONS
    text = event.message or "" if known or not event.reason else f"{event.reason}: {event.message or ''}"
    warning = TrainerWarning(
        attempt=attempt,
        reason=event.reason if known and event.reason else OTHER_WARNING,
        message=evidence.shorten(text),
        time=format_timestamp(now),
    )
    return add_warning(kept, warning)


def add_warning(kept: tuple[TrainerWarning, ...], warning: TrainerWarning) -> tuple[TrainerWarning, ...]:
    """The last warnings, with this one instead of an earlier one with its reason."""
    return (*(earlier for earlier in kept if earlier.reason != warning.reason), warning)[-WARNINGS_KEPT:]


def _step_of(name: str) -> int | None:
    """`step_000040` -> 40."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None
