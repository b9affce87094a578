"""PURE: reports of trainers.

A report is one event of the run folder's `progress.jsonl`, with the number of the attempt:
`{"attempt": 1, "event": "step", "step": 7, "reward/mean": 0.4, "weights/version": 7, "timing_s/sync": 0.2, ...}`.
Unknown fields are ignored, so a newer trainer can report to an older operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from omni_operator.api.status import WARNINGS_KEPT, TrainerWarning

from . import evidence
from .observation import TrainerReport
from .reasons import FailureReason
from .timestamps import format_timestamp

Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
# Reasons in the trainer's error events that are reasons of failures.
_KINDS = {reason.value: reason for reason in FailureReason}


class ReportEvent(BaseModel):
    """An event of a trainer."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    attempt: Annotated[int, Field(ge=1, le=10_000)]
    event: Literal["start", "phase", "step", "checkpoint", "heartbeat", "warning", "error", "stopped", "done"]
    step: Count | None = None
    total_steps: Count | None = None
    reward_mean: Number | None = Field(default=None, alias="reward/mean")
    validation_reward: Number | None = Field(default=None, alias="val/reward/mean")
    version: Count | None = Field(default=None, alias="weights/version")
    min_version: Count | None = Field(default=None, alias="weights/min_replica_version")
    max_version: Count | None = Field(default=None, alias="weights/max_replica_version")
    images_per_second: Number | None = Field(default=None, alias="images_per_s")
    sync_seconds: Number | None = Field(default=None, alias="timing_s/sync")
    step_seconds: Number | None = Field(default=None, alias="timing_s/step")
    eta_s: Number | None = None
    samples: Count | None = None
    text: Annotated[str, Field(max_length=1024)] | None = None
    path: Annotated[str, Field(max_length=1024)] | None = None
    message: Annotated[str, Field(max_length=65_536)] | None = None
    reason: Annotated[str, Field(max_length=64)] | None = None


def parse_event(body: Mapping[str, Any]) -> ReportEvent:
    """Parse an event.

    Raises:
        pydantic.ValidationError: it is not valid.
    """
    return ReportEvent.model_validate(body)


def merge_event(previous: TrainerReport | None, event: ReportEvent, now: datetime) -> TrainerReport:
    """Merge an event into the newest report; within an attempt, fields that it does not have stay."""
    base = previous if previous and previous.attempt == event.attempt else TrainerReport(attempt=event.attempt, at=now)
    values: dict[str, Any] = {
        name: value
        for name in (
            "step", "total_steps", "reward_mean", "validation_reward", "version", "min_version", "max_version",
            "images_per_second", "sync_seconds", "step_seconds", "samples",
        )
        if (value := getattr(event, name)) is not None
    }  # fmt: skip
    if event.event in ("phase", "step", "done"):
        values["phase"] = event.text if event.event == "phase" else None
    if event.eta_s is not None:
        values["eta_seconds"] = event.eta_s
    if event.sync_seconds is not None and event.version is not None:
        values["synced_at"] = now
    if event.event == "checkpoint" and event.path:
        name = PurePosixPath(event.path).name
        step = event.step if event.step is not None else _step_of(name)
        values.update(checkpoint=name, checkpoint_at=now, checkpoint_step=step)
        values.pop("step", None)  # the step of the checkpoint, which may be older
    if event.event == "done":
        values["eta_seconds"] = 0.0
    if event.event == "error":
        values["error"] = evidence.shorten(event.message or "the trainer reported no message")
        values["error_kind"] = _KINDS.get(event.reason or "")
    if event.event == "warning":
        values["warnings"] = _add_warning(base.warnings, event, now)
    return replace(base, at=now, **values)


def _add_warning(kept: tuple[TrainerWarning, ...], event: ReportEvent, now: datetime) -> tuple[TrainerWarning, ...]:
    """The warnings with this one instead of an earlier one with its reason."""
    warning = TrainerWarning(
        attempt=event.attempt, reason=event.reason or "Warning", message=evidence.shorten(event.message or ""),
        time=format_timestamp(now),
    )  # fmt: skip
    return (*(other for other in kept if other.reason != warning.reason), warning)[-WARNINGS_KEPT:]


def is_current(previous: TrainerReport | None, event: ReportEvent) -> bool:
    """Whether an event belongs to the newest known attempt or to a later one."""
    return previous is None or event.attempt >= previous.attempt


def _step_of(name: str) -> int | None:
    """`step_000040` -> 40."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None
