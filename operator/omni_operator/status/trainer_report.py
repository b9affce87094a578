"""PURE: what a trainer posts -> what is remembered of it.

A post is one event of the run folder's `progress.jsonl`, with the number of the attempt:
`{"attempt": 1, "event": "step", "step": 7, "reward/mean": 0.4, "weights/version": 7, "timing_s/sync": 0.2, ...}`.
Unknown fields are left aside, so a newer trainer can talk to an older operator.
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
# Exit words of the trainer that are reasons of their own.
_KINDS = {reason.value: reason for reason in FailureReason}


class ReportEvent(BaseModel):
    """One event of a trainer."""

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
    """A post.

    Raises:
        pydantic.ValidationError: it is not one.
    """
    return ReportEvent.model_validate(body)


def merge_event(previous: TrainerReport | None, post: ReportEvent, now: datetime) -> TrainerReport:
    """The newest report, with this post in it; what the post says nothing of stays, within one attempt."""
    base = previous if previous and previous.attempt == post.attempt else TrainerReport(attempt=post.attempt, at=now)
    said: dict[str, Any] = {
        name: value
        for name in (
            "step", "total_steps", "reward_mean", "validation_reward", "version", "min_version", "max_version",
            "images_per_second", "sync_seconds", "step_seconds", "samples",
        )
        if (value := getattr(post, name)) is not None
    }  # fmt: skip
    if post.event in ("phase", "step", "done"):
        said["phase"] = post.text if post.event == "phase" else None
    if post.eta_s is not None:
        said["eta_seconds"] = post.eta_s
    if post.sync_seconds is not None and post.version is not None:
        said["synced_at"] = now
    if post.event == "checkpoint" and post.path:
        name = PurePosixPath(post.path).name
        step = post.step if post.step is not None else _step_of(name)
        said.update(checkpoint=name, checkpoint_at=now, checkpoint_step=step)
        said.pop("step", None)  # of the checkpoint, which may have been written late
    if post.event == "done":
        said["eta_seconds"] = 0.0
    if post.event == "error":
        said["error"] = evidence.shorten(post.message or "the trainer gave no reason")
        said["error_kind"] = _KINDS.get(post.reason or "")
    if post.event == "warning":
        said["warnings"] = _add_warning(base.warnings, post, now)
    return replace(base, at=now, **said)


def _add_warning(kept: tuple[TrainerWarning, ...], post: ReportEvent, now: datetime) -> tuple[TrainerWarning, ...]:
    """The warnings with this one in the place of an earlier one of its reason."""
    warning = TrainerWarning(
        attempt=post.attempt, reason=post.reason or "Warning", message=evidence.shorten(post.message or ""),
        time=format_timestamp(now),
    )  # fmt: skip
    return (*(other for other in kept if other.reason != warning.reason), warning)[-WARNINGS_KEPT:]


def is_current(previous: TrainerReport | None, post: ReportEvent) -> bool:
    """Whether a post is of the attempt that is remembered, or of a later one."""
    return previous is None or post.attempt >= previous.attempt


def _step_of(name: str) -> int | None:
    """`step_000040` -> 40."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None
