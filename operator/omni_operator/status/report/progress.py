"""PURE: progress, weights, checkpoint and usage in the status, from the trainer's reports."""

import math
from datetime import datetime

from omni_operator.api.status import COUNT_LIMIT, SECONDS_LIMIT, CheckpointStatus, Progress, Usage, Weights
from omni_operator.status.decisions.snapshot import Snapshot
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Attempt
from omni_operator.status.observed.timestamps import format_timestamp


def update_reported(job: Snapshot) -> dict[str, object]:
    """The parts of a status that come from the trainer's report, also after the end of the job."""
    return {"progress": update_progress(job), "weights": update_weights(job), "checkpoint": update_checkpoint(job)}


def update_progress(job: Snapshot) -> Progress:
    """Progress of the run; unchanged without a report."""
    previous = job.status.progress
    report = job.attempt.report
    if report is None:
        return previous
    step = report.step if report.step is not None else previous.global_step
    total = report.total_steps or job.facts.total_steps or previous.total_steps
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


def update_weights(job: Snapshot) -> Weights:
    """Versions of the weights; unchanged without a report of a version."""
    previous = job.status.weights
    report = job.attempt.report
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


def update_checkpoint(job: Snapshot) -> CheckpointStatus:
    """Newest checkpoint; an attempt that has not saved one resumes from an earlier attempt's checkpoint."""
    previous = job.status.checkpoint
    report = job.attempt.report
    if report is None or report.checkpoint is None or report.checkpoint == previous.last:
        return previous
    return CheckpointStatus(
        last=report.checkpoint,
        step=report.checkpoint_step,
        time=format_timestamp(report.checkpoint_at) if report.checkpoint_at else None,
    )


def update_usage(job: Snapshot, running: datetime | None, ended: datetime | None, *, may_run: bool) -> Usage:
    """Accelerator seconds and samples, summed over all attempts.

    Times are counted in whole seconds, as the status has them, so that nothing is lost or counted twice between writes.
    Seconds count at the number of accelerators in the last written status, because the attempt had it in that time. So
    a change counts from the pass that found it on, also after a restart of the operator.

    Args:
        running: start of the attempt's trainer; None if it did not run.
        ended: end of the attempt's trainer, if it succeeded.
        may_run: whether seconds after this pass may count.
    """
    usage = job.status.usage
    report = job.attempt.report
    accelerators = count_accelerators(job.facts, job.attempt)
    held = accelerators if usage.accelerators is None else usage.accelerators
    runs = running is not None and may_run
    before = job.running_since
    if not runs:
        until = ended or (job.now if before else None)
    elif held != accelerators:
        until = job.now  # the seconds before the change count at the number before it
    else:
        until = report.at if report else None
    # Up to when the running attempt is counted.
    counted = job.counted_until if before else None
    seconds = usage.accelerator_seconds
    started = running or before
    if started is not None and until is not None:
        since = max(started, counted) if counted else started
        if since > job.now:  # from before the clock was set back
            since = until
        until = max(since, until)
        seconds += held * (int(until.timestamp()) - int(since.timestamp()))
        seconds = min(seconds, SECONDS_LIMIT)
        counted = until
    samples = usage.samples
    if report and report.samples is not None:
        earlier = job.status.progress.samples or 0
        # A lower count means that the trainer has restarted in the same attempt.
        samples = min(samples + report.samples - (earlier if earlier <= report.samples else 0), COUNT_LIMIT)
    price = round(seconds * 1000 / samples, 1) if samples and seconds else None
    return Usage(
        accelerator_seconds=round(seconds, 1),
        accelerators=accelerators if may_run else None,
        counted_time=format_timestamp(counted) if counted and runs else None,
        samples=samples,
        accelerator_seconds_per_thousand_samples=price,
    )


def count_accelerators(facts: JobFacts, attempt: Attempt) -> int:
    """Number of accelerators of all pods that an attempt's RayCluster requests.

    Args:
        facts: returned by `as_running`.
    """
    total = sum(pool.pods * pool.accelerators for pool in (facts.trainer, *facts.scorers))
    for pool in facts.pools:
        group = attempt.groups.get(pool.group)
        total += (group.replicas if group else pool.pods) * pool.accelerators
    return min(total, COUNT_LIMIT)
