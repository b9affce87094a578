"""The folder of a run before the trainer gets it: new, to be gone on with, finished, or someone else's."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omni_operator.api import DiffusionRLJob, JobError, load_job
from omni_operator.api.yaml_document import Document

from .json_lines import MalformedLine, read_records
from .processes import having_open

JOB, OVERRIDES, LOG, PROGRESS, METRICS, REPORT = (
    "job.yaml", "overrides.txt", "train.log", "progress.jsonl", "metrics.jsonl", "report.html",
)  # fmt: skip
# Settings of the trainer that may differ when a run goes on: how long it is and what it leaves, not what it computes.
PACE = (
    "trainer.total_training_steps", "trainer.test_freq", "trainer.save_freq", "trainer.max_actor_ckpt_to_keep",
    "trainer.resume_mode",
)  # fmt: skip
Render = Callable[[DiffusionRLJob], Sequence[str]]
_CHECKPOINT = re.compile(r"^step_(\d+)$")


class RunFolderError(ValueError):
    """The folder cannot be used for this job; the message says what to do."""


def prepare(folder: Path, job: DiffusionRLJob, document: Document, render: Render, *, fresh: bool) -> None:
    """Make the folder ready for the trainer.

    Args:
        job: with absolute paths.
        document: what the job was read from; it is kept with absolute paths too, so that the copy is the same job.
        render: a job's settings of the trainer, which tell whether two jobs compute the same.
        fresh: keep an earlier run of that name aside, and start from nothing.

    Raises:
        RunFolderError: the folder holds another run, or something that is no run.
    """
    if fresh and folder.exists():
        folder.rename(_aside(folder))
    if folder.exists() and any(folder.iterdir()):
        _must_match(folder, job, render)
    folder.mkdir(parents=True, exist_ok=True)
    _write_paths(document, job)
    (folder / JOB).write_text(document.dump(), encoding="utf-8")
    (folder / OVERRIDES).write_text("".join(f"{line}\n" for line in render(job)), encoding="utf-8")


def last_checkpoint(folder: Path) -> int | None:
    """Step of the newest checkpoint."""
    checkpoints = folder / "checkpoints"
    names = [entry.name for entry in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return max((int(match[1]) for name in names if (match := _CHECKPOINT.match(name))), default=None)


def is_finished(folder: Path, total_steps: int) -> bool:
    """Whether the run has come to its last step, checkpoint and all."""
    lines = [line for line in read_records(folder / PROGRESS) if not isinstance(line, MalformedLine)]
    ended = bool(lines) and lines[-1].get("event") == "done" and lines[-1].get("step") == total_steps
    return ended and last_checkpoint(folder) == total_steps


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder for one run; the trainer inherits the descriptor, so an orphaned trainer holds it too.

    The lock is a file beside the folder, so that it outlives `--fresh`.

    Raises:
        RunFolderError: a run holds it; the message names its processes.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holders = [str(pid) for pid in having_open(lock) if pid != os.getpid()]
            who = f" (process {', '.join(holders)})" if holders else ""
            raise RunFolderError(f"{folder}: this job is running already{who}") from error
        yield descriptor
    finally:
        os.close(descriptor)


def _must_match(folder: Path, job: DiffusionRLJob, render: Render) -> None:
    again = "--fresh keeps it aside and starts anew; or give the job another metadata.name"
    try:
        earlier = load_job(folder / JOB).job
    except JobError as error:
        raise RunFolderError(f"{folder} holds something that is not a run of this version: {error}\n{again}") from error
    if _computed(render(earlier)) != _computed(render(job)):
        lines = "\n".join(f"  {name}" for name in sorted(_differing(_values(earlier), _values(job))))
        raise RunFolderError(f"{folder} holds a run of another job; what differs:\n{lines}\n{again}")


def _write_paths(document: Document, job: DiffusionRLJob) -> None:
    spec = job.spec
    document.replace(("spec", "model", "base"), spec.model.base)
    for name, files in (("train", spec.data.train), ("validation", spec.data.validation)):
        for place, path in enumerate(files):
            document.replace(("spec", "data", name, place), path)
    for place, scorer in enumerate(spec.reward.scorers):
        if scorer.function:
            document.replace(("spec", "reward", "scorers", place, "function", "path"), scorer.function.path)


def _computed(overrides: Sequence[str]) -> list[str]:
    return [line for line in overrides if not line.startswith(tuple(f"{name}=" for name in PACE))]


def _values(job: DiffusionRLJob) -> dict[str, Any]:
    return dict(_flat("spec", job.spec.model_dump(by_alias=True, mode="json")))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    else:
        yield name, value


def _differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    missing = object()
    return {name for name in one.keys() | other.keys() if one.get(name, missing) != other.get(name, missing)}


def _aside(folder: Path) -> Path:
    """The first free name `<folder>-before-<n>`."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}-before-{number}")).exists():
        number += 1
    return aside
