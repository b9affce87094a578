"""Runs that train nothing and send results: their checkpoints, events and files."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import ray.util.metrics  # noqa: F401  as a run has before its first checkpoint: two threads must not import it at a time

from verl_omni.trainer import main_diffusion
from verl_omni.trainer.run import checkpoints


def save(run: main_diffusion.Run, step: int, *, keep: int = 0, adapter: bool = True, kind: str = "checkpoint") -> None:
    def write(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "state" / "optimizer").write_bytes(b"o" * 1000)
        if adapter:
            (folder / "lora").mkdir()
            (folder / "lora" / "weights.safetensors").write_bytes(bytes([step]) * 1000)

    path = checkpoints.save(run.folder.path / f"{kind}s", step, write, keep=keep, run=1)
    run.folder.event(kind, step=step, path=str(path))


def first_step(run: main_diffusion.Run) -> None:
    """The metrics of a step, an image, and a checkpoint of step 2."""
    run.folder.step({"step": 1, "reward/mean": 0.5})
    picture = run.folder.path / "samples" / "step_000002"
    picture.mkdir(parents=True)
    (picture / "00.png").write_bytes(b"png")
    save(run, 2)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing was sent while the training went on"
        threading.Event().wait(0.01)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
