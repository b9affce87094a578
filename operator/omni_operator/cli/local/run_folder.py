"""The run folder before the trainer starts: new, resumable, finished, or of another job."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omni_operator import plan
from omni_operator.api import DiffusionRLJob, JobError, load_job
from omni_operator.api.files.yaml_document import Document
from omni_operator.api.overrides.override_names import read_value
from omni_operator.cli import console
from omni_operator.plan.hidden_values import hide_values
from omni_operator.staged_files import staged
from verl_omni.settings_schema.declarations import FIELDS
from verl_omni.settings_schema.resuming import may_differ

from .json_lines import MalformedLine, read_records
from .processes import find_users

JOB = "job.yaml"
OVERRIDES = "overrides.txt"
LOG = "train.log"
PROGRESS = "progress.jsonl"
METRICS = "metrics.jsonl"
REPORT = "report.html"
FIELDS_THAT_MAY_DIFFER = (
    *(field for name, field in sorted(FIELDS.items()) if may_differ(name)),
    "spec.checkpoint",
    "spec.observability",
    "spec.output",
    "spec.storage",
)
OWN_FOLDER = "trainer.default_local_dir="
Render = Callable[[DiffusionRLJob], Sequence[str]]
MANIFEST = "manifest.json"  # written last into a checkpoint
_CHECKPOINT = re.compile(r"^step_(\d+)$")


class RunFolderError(ValueError):
    """The folder cannot be used for this job; the message tells what to do."""


def prepare(folder: Path, job: DiffusionRLJob, document: Document, render: Render, *, fresh: bool) -> None:
    """Prepare the folder for the trainer.

    Args:
        job: with absolute paths.
        document: the job's YAML; the folder gets a copy with absolute paths, which is the same job anywhere, but for
            secrets in pod templates.
        render: returns the trainer's overrides of a job; jobs with the same overrides compute the same.
        fresh: rename an earlier run of that name and start a new one.

    Raises:
        RunFolderError: the folder holds a run of another job that has trained, or other files, or cannot be written.
    """
    try:
        if fresh and folder.exists():
            folder.rename(_backup_name(folder))
        if folder.exists() and any(folder.iterdir()):
            _must_match(folder, job, render)
        _write_paths(document, job)
        hide_values(document.tree)
        with staged(folder) as staging:
            (staging / JOB).write_text(document.dump(), encoding="utf-8")
            (staging / OVERRIDES).write_text("".join(f"{line}\n" for line in render(job)), encoding="utf-8")
    except OSError as error:
        if error.errno in console.NO_ROOM:
            raise
        shown = console.short_path(folder)
        raise RunFolderError(f"cannot use {shown}: {error.strerror}; choose another --runs or metadata.name") from error


def last_checkpoint(folder: Path) -> int | None:
    """Step of the latest checkpoint, or None. A folder without a manifest is no checkpoint."""
    names = [manifest.parent.name for manifest in folder.glob(f"checkpoints/*/{MANIFEST}")]
    return max((int(match[1]) for name in names if (match := _CHECKPOINT.match(name))), default=None)


def is_finished(folder: Path, total_steps: int) -> bool:
    """Whether the run has finished its last step and saved its checkpoint."""
    lines = [line for line in read_records(folder / PROGRESS) if not isinstance(line, MalformedLine)]
    ended = bool(lines) and lines[-1].get("event") == "done" and lines[-1].get("step") == total_steps
    return ended and last_checkpoint(folder) == total_steps


def check_length(folder: Path, total_steps: int) -> None:
    """Refuse a run that would end before its last checkpoint: it would train nothing, and be called complete.

    Raises:
        RunFolderError: the message tells what to do.
    """
    if (step := last_checkpoint(folder)) is not None and step > total_steps:
        raise RunFolderError(
            f"{console.short_path(folder)} has a checkpoint of step {step}, after the last step of this job, "
            f"{total_steps} (spec.trainer.totalSteps): raise that, or add --fresh to start a new run"
        )


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock the folder. The trainer inherits the descriptor, so that an orphaned trainer keeps the lock.

    The lock file is next to the folder, so that `--fresh` does not move it.

    Raises:
        RunFolderError: another run holds the lock; the message names its processes.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder.parent}: {error.strerror}; choose another --runs") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holders = [str(pid) for pid in find_users(lock) if pid != os.getpid()]
            owners = f" (process {', '.join(holders)})" if holders else ""
            raise RunFolderError(f"{console.short_path(folder)}: this job is already running{owners}") from error
        yield descriptor
    finally:
        os.close(descriptor)


def _must_match(folder: Path, job: DiffusionRLJob, render: Render) -> None:
    shown = console.short_path(folder)
    fix = "to start a new run, add --fresh (it renames this folder), or change metadata.name"
    try:
        earlier = load_job(folder / JOB).job
    except JobError as error:
        raise RunFolderError(f"{shown} is not a run folder of this version: {error}\n{fix}") from error
    if not any(True for _ in read_records(folder / METRICS)) and last_checkpoint(folder) is None:
        return  # nothing is lost: a run whose settings the trainer refused leaves only the job and logs
    earlier = _moved(earlier, job, _folder_then(folder), folder)
    if _computed(render(earlier)) != _computed(render(job)):
        names = sorted(_differing(_values(earlier), _values(job)))
        lines = "\n".join(f"  {name}" for name in names if not name.startswith(FIELDS_THAT_MAY_DIFFER))
        raise RunFolderError(f"{shown} holds a run of a different job; these fields differ:\n{lines}\n{fix}")


def _folder_then(folder: Path) -> Path:
    """Where the run folder was when its run began."""
    try:
        lines = (folder / OVERRIDES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return folder
    folders = [line.removeprefix(OWN_FOLDER) for line in lines if line.startswith(OWN_FOLDER)]
    return Path(str(read_value(folders[-1]))) if folders else folder


def _moved(earlier: DiffusionRLJob, job: DiffusionRLJob, then: Path, folder: Path) -> DiffusionRLJob:
    """The earlier job with the paths of `job` for files that were moved, or copied, together with the run folder."""
    known: set[str] = set()

    def note(path: str) -> str:
        known.add(path)
        return path

    def place(path: str) -> str:
        moved = os.path.normpath(folder / os.path.relpath(path, then))
        return moved if path not in known and moved in known else path

    plan.map_paths(job, note)
    return plan.map_paths(earlier, place)


def _write_paths(document: Document, job: DiffusionRLJob) -> None:
    spec = job.spec
    document.replace(("spec", "model", "base"), spec.model.base)
    if (adapter := spec.model.lora.start_from) is not None:
        document.replace(("spec", "model", "lora", "startFrom"), adapter)
    for name, files in (("train", spec.data.train), ("validation", spec.data.validation)):
        for index, path in enumerate(files):
            document.replace(("spec", "data", name, index), path)
    for index, scorer in enumerate(spec.reward.scorers):
        if scorer.function:
            document.replace(("spec", "reward", "scorers", index, "function", "path"), scorer.function.path)
        for setting, path in scorer.paths.items():
            document.replace(("spec", "reward", "scorers", index, "settings", setting), path)
        if scorer.pool and scorer.pool.python:
            document.replace(("spec", "reward", "scorers", index, "pool", "python"), scorer.pool.python)
    if (judge := spec.reward.model) and judge.base_is_folder:
        document.replace(("spec", "reward", "model", "base"), judge.base)


def _computed(overrides: Sequence[str]) -> list[str]:
    return [line for line in overrides if not may_differ(line.lstrip("+").partition("=")[0])]


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


def _backup_name(folder: Path) -> Path:
    """The first free name `<folder>-before-<n>`."""
    number = 1
    while (backup := folder.with_name(f"{folder.name}-before-{number}")).exists():
        number += 1
    return backup
