"""PURE: progress, weights, checkpoint and usage in the status, from the trainer's reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.status import COUNT_LIMIT, SECONDS_LIMIT, CheckpointStatus, Progress, Status, Usage, Weights
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import TrainerReport
from omni_operator.status.observed.timestamps import format_timestamp, parse_timestamp


def update_progress(previous: Progress, report: TrainerReport | None, facts: JobFacts) -> Progress:
    """Progress of the run; unchanged without a report."""
    if report is None:
        return previous
    step = report.step if report.step is not None else previous.global_step
    total = report.total_steps or facts.total_steps or previous.total_steps
    advanced = report.step is not None and report.step != previous.global_step
    reward = report.reward_mean if report.reward_mean is not None else previous.reward
    seconds_left = max(0, math.ceil(report.eta_seconds)) if report.eta_seconds is not None else None
    return Progress(
        global_step=step,
        total_steps=total,
        percent=min(100, step * 100 // total) if step is not None and total else None,
        summary=f"{step}/{total}" if step is not None and total else None,
        reward=reward,
        reward_summary=f"{reward:.3f}" if reward is not None else None,
        validation_reward=report.validation_reward
        if report.validation_reward is not None
        else previous.validation_reward,
        held_out_scores=dict(report.held_out_scores) if report.held_out_scores else previous.held_out_scores,
        samples=report.samples if report.samples is not None else previous.samples,
        unscored_samples=(report.unscored if report.unscored is not None else previous.unscored_samples) or None,
        images_folder=report.images_folder or previous.images_folder,
        images_per_second=report.images_per_second
        if report.images_per_second is not None
        else previous.images_per_second,
        estimated_remaining_seconds=seconds_left,
        remaining_summary=format_duration(seconds_left) if seconds_left is not None else None,
        last_update_time=format_timestamp(report.at) if advanced else previous.last_update_time,
        heartbeat_time=format_timestamp(report.at),
    )


def format_duration(seconds: int) -> str:
    """A duration in its two largest units, as kubectl prints ages: 3d4h, 2h13m, 5m20s."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{seconds}s"


def update_weights(previous: Weights, report: TrainerReport | None) -> Weights:
    """Versions of the weights; unchanged without a report of a version."""
    if report is None or report.version is None:
        return previous
    lag = max(0, report.version - report.min_version) if report.min_version is not None else None
    return Weights(
        trainer_version=report.version,
        min_replica_version=report.min_version,
        max_replica_version=report.max_version,
        lag=lag,
        last_sync_time=format_timestamp(report.synced_at) if report.synced_at else previous.last_sync_time,
        last_sync_seconds=report.sync_seconds if report.sync_seconds is not None else previous.last_sync_seconds,
    )


def update_checkpoint(previous: CheckpointStatus, report: TrainerReport | None) -> CheckpointStatus:
    """Newest checkpoint; an attempt that has not saved one resumes from an earlier attempt's checkpoint."""
    if report is None or report.checkpoint is None or report.checkpoint == previous.last:
        return previous
    return CheckpointStatus(
        last=report.checkpoint,
        step=report.checkpoint_step,
        time=format_timestamp(report.checkpoint_at) if report.checkpoint_at else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Which seconds of an attempt to count.

    Attributes:
        running: start of the attempt's trainer; None if it did not run.
        until: end of the seconds to count; None if there are none to add.
        runs: whether seconds after `until` will count.
        held: accelerators that the attempt had until now.
        accelerators: those that it has from now on; None: it has ended.
    """

    running: datetime | None
    until: datetime | None
    runs: bool
    held: int
    accelerators: int | None
    now: datetime


def update_usage(previous: Status, report: TrainerReport | None, counting: Counting) -> Usage:
    """Accelerator seconds and samples, summed over all attempts.

    Times are counted in whole seconds, as the status has them, so that nothing is lost or counted twice between writes.
    Seconds count at the number of accelerators in the last written status, because the attempt had it in that time. So
    a change counts from the pass that found it on, also after a restart of the operator.

    Args:
        previous: the last written status.
    """
    usage = previous.usage
    until = counting.until
    # Up to when the running attempt is counted.
    counted = parse_timestamp(usage.counted_time) if previous.running_time else None
    seconds = usage.accelerator_seconds
    if counting.running is not None and until is not None:
        since = max(counting.running, counted) if counted else counting.running
        if since > counting.now:  # from before the clock was set back
            since = until
        until = max(since, until)
        seconds += counting.held * (int(until.timestamp()) - int(since.timestamp()))
        seconds = min(seconds, SECONDS_LIMIT)
        counted = until
    samples = usage.samples
    if report and report.samples is not None:
        before = previous.progress.samples or 0
        # A lower count means that the trainer has restarted in the same attempt.
        samples = min(samples + report.samples - (before if before <= report.samples else 0), COUNT_LIMIT)
    price = round(seconds * 1000 / samples, 1) if samples and seconds else None
    return Usage(
        accelerator_seconds=round(seconds, 1),
        accelerators=counting.accelerators,
        counted_time=format_timestamp(counted) if counted and counting.runs else None,
        samples=samples,
        accelerator_seconds_per_thousand_samples=price,
    )
