"""Run folder: all files that a run leaves, and the interface to the programs that watch it (docs/guides/results.md)."""

import contextlib
import json
import math
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from verl_omni.trainer.run.machine import describe_machine, source_commit
from verl_omni.utils.pixels import as_images

STRIP_FRAMES = 4
PREVIEW = "preview"  # kind of a sample that shows a training image next to the evaluation's
OWNER = ".owner"
VIDEO_QUALITY = 90  # quality of WebP's lossy compression, at most 100
VIDEO_EFFORT = 2  # from 0 to 6: the time to write grows faster than the file shrinks
VERSIONED = ("omni-operator", "verl", "vllm", "vllm-omni", "ray", "torch", "diffusers", "peft", "transformers")


@dataclass(frozen=True, slots=True)
class ShownSample:
    """A generated image or video that is saved.

    Attributes:
        version: version of the weights that generated it.
    """

    prompt: str
    seed: int
    score: float | None  # None: it could not be scored
    image: torch.Tensor  # uint8 [C, H, W] or [T, C, H, W]
    inputs: Sequence[Image.Image] = ()  # images of its prompt
    sde_noise_seed: int | None = None  # seed of the noise of the steps, if it differs from `seed`
    version: int | None = None
    kind: str = "prompt"  # in the index: a fixed prompt; best, worst: of an evaluation; preview: see `TrainingPreview`
    training_score: float | None = None  # of a preview


class TakenOver(Exception):
    """Another program has begun to write into the run folder."""


class RunFolder:
    """Writer of a run folder. Lines are appended and flushed; whole files are written aside and renamed.

    Only the newest of several writers may write: pods of a preempted run may still be terminating when it resumes.

    Args:
        on_event: called with every event, after it is in `progress.jsonl`.
    """

    def __init__(self, path: Path, on_event: Callable[[Mapping[str, Any]], None] = lambda event: None) -> None:
        self.path = path
        self.on_event = on_event
        self._owner: str | None = None
        self._images_folder: str | None = None  # of the last evaluation with images
        self._newest: float | None = None  # the step of the last line of metrics.jsonl
        self._lock = threading.RLock()  # results are sent in the background, and recorded from there
        path.mkdir(parents=True, exist_ok=True)

    def take(self) -> None:
        """Become the only writer."""
        self._owner = uuid.uuid4().hex
        atomic_write(self.path / OWNER, self._owner)

    def check_owner(self) -> None:
        """Raise `TakenOver` if another writer has begun since `take`; an unreadable owner file is ignored."""
        if self._owner is None:
            return
        with contextlib.suppress(OSError):
            if (self.path / OWNER).read_text(encoding="utf-8") != self._owner:
                raise TakenOver(
                    f"another program trains in {self.path} now; this one has ended and writes nothing there"
                )

    def start(self, config: DictConfig, *, resumed_from: int | None, continues: bool = True) -> None:
        """Write settings and versions; drop the metrics of steps that a resumed run repeats, or of an earlier run.

        Args:
            continues: whether the checkpoint of `resumed_from` is this folder's, so that its metrics led to it.
        """
        self._write("config.yaml", OmegaConf.to_yaml(config, resolve=True))
        self._write("versions.json", json.dumps(_versions(), indent=2) + "\n")
        self._write("machine.json", json.dumps(describe_machine(), indent=2) + "\n")
        continues = continues and resumed_from is not None
        lines = self.metrics() if continues else []
        kept = [line for line in lines if line["step"] <= (resumed_from or 0)]
        self._write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        self._newest = kept[-1]["step"] if kept else None
        total = config.trainer.total_training_steps
        self.event("start", total_steps=total, resumed_from=resumed_from, new_run=not continues)

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of `metrics.jsonl`, one a step; None for a number that was not finite. A kill may have cut the last."""
        path = self.path / "metrics.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]

    def line(self, step: int) -> dict[str, float]:
        """The finite metrics of a step; empty if it has no line."""
        lines = [line for line in self.metrics() if line["step"] == step]
        return {name: value for line in lines for name, value in line.items() if value is not None}

    def has_evaluation(self, step: int) -> bool:
        """Whether the metrics of `step` already include an evaluation."""
        return any(line["step"] == step and "val/reward/mean" in line for line in self.metrics())

    def event(self, event: str, **fields: Any) -> None:
        """Append an event; docs/guides/results.md lists them with their fields."""
        self._record({"event": event, **fields})

    def step(
        self,
        metrics: Mapping[str, float],
        eta_s: float | None = None,
        samples: int | None = None,
        unscored: int = 0,
        held_out: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Append the metrics of a step, including `step`, and an event; they replace earlier metrics of the same step.

        A step has metrics twice if a checkpoint was saved before its evaluation.

        Args:
            eta_s: estimated seconds to the end. samples: number of training samples since this process started.
            unscored: number of those without a reward.
            held_out: mean scores of scorers that score evaluations only, by scorer.

        Returns:
            The metrics that the step did not have before.
        """
        line = {name: _plain(value) for name, value in metrics.items()}
        before = {}
        if line["step"] == self._newest:
            *earlier, before = self.metrics()
            self._write("metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in [*earlier, line]))
        else:
            self._append("metrics.jsonl", line)
        self._newest = line["step"]
        event: dict[str, Any] = {"event": "step", **line, "eta_s": eta_s, "samples": samples, "unscored": unscored}
        if self._images_folder is not None:
            event["images_folder"] = self._images_folder
        if held_out:
            event["val/held_out_scores"] = {scorer: _plain(value) for scorer, value in held_out.items()}
        self._record(event)
        return {name: value for name, value in metrics.items() if name not in before}

    def samples(self, step: int, samples: Sequence[ShownSample], fps: float) -> None:
        """Save samples of an evaluation as PNG files, with an index; videos also as files of `fps` frames a second."""
        self.check_owner()
        folder = self.path / "samples" / f"step_{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        index: list[dict[str, Any]] = []
        videos: dict[Path, torch.Tensor] = {}
        for number, sample in enumerate(samples):
            name = f"{number:02d}.png"
            as_file(sample).save(folder / name)
            entry: dict[str, Any] = {
                "file": name,
                **_add_video(videos, folder, f"{number:02d}.webp", sample),
                "prompt": sample.prompt,
            }
            entry |= {"seed": sample.seed, "score": sample.score, "kind": sample.kind}
            if sample.kind == PREVIEW:
                entry["training_score"] = sample.training_score
            index.append(entry)
        _write_videos(videos, fps)
        atomic_write(folder / "index.json", json.dumps(index, indent=2) + "\n")
        self._images_folder = f"samples/{folder.name}"

    def _record(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._append("progress.jsonl", event)
            self.on_event(event)

    def _write(self, name: str, text: str) -> None:
        self.check_owner()
        atomic_write(self.path / name, text)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        self.check_owner()
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def as_picture(sample: torch.Tensor) -> torch.Tensor:
    """An image [C, H, W] unchanged; of a video [T, C, H, W], up to four frames in a row, first and last included.

    Returns:
        [C, H, W], or [C, H, frames * W].
    """
    if sample.ndim == 3:
        return sample
    places = torch.linspace(0, len(sample) - 1, min(len(sample), STRIP_FRAMES)).round().long()
    return torch.cat(list(sample[places]), dim=-1)


def as_file(sample: ShownSample) -> Image.Image:
    """The picture of a sample, after the images of its prompt, which get its height."""
    pixels = as_picture(sample.image).permute(1, 2, 0).numpy()
    height = pixels.shape[0]
    shown = [
        picture.convert("RGB").resize((round(picture.width * height / picture.height), height))
        for picture in sample.inputs
    ]
    return Image.fromarray(np.concatenate([*map(np.asarray, shown), pixels], axis=1))


def atomic_write(path: Path, text: str) -> None:
    """Write a file atomically: write aside, fsync, rename."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    """A JSON number; None for a number that is not finite, which JSON cannot express."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = float(value)
    return value if isinstance(value, int) or math.isfinite(value) else None


def _versions() -> dict[str, str]:
    versions = {}
    for name in VERSIONED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if commit := source_commit():
        versions["commit"] = commit
    return versions


def write_samples(folder: Path, step: int, samples: Sequence[ShownSample], limit: int | None, fps: float) -> None:
    """Write `<folder>/<step>.jsonl` and the files it names; an older file of the step is replaced.

    A line has `step`, `input` (the prompt), `output` (the picture's path in `folder`), of a video `video` (its path),
    `score`, `seed` and `version`, and `sde_noise_seed` if the sample has one.

    Args:
        limit: how many of them, from the first; None: all.
        fps: frames a second of videos.
    """
    pictures = folder / str(step)
    pictures.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    videos: dict[Path, torch.Tensor] = {}
    for number, sample in enumerate(samples[:limit]):
        name = f"{step}/{number:04d}.png"
        Image.fromarray(as_picture(sample.image).permute(1, 2, 0).numpy()).save(folder / name)
        video = _add_video(videos, folder, f"{step}/{number:04d}.webp", sample)
        lines.append(
            {
                "step": step,
                "input": sample.prompt,
                "output": name,
                **video,
                "score": sample.score,
                "seed": sample.seed,
                "version": sample.version,
                **({} if sample.sde_noise_seed is None else {"sde_noise_seed": sample.sde_noise_seed}),
            }
        )
    _write_videos(videos, fps)
    atomic_write(folder / f"{step}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _add_video(videos: dict[Path, torch.Tensor], folder: Path, name: str, sample: ShownSample) -> dict[str, str]:
    """Entries about the file in a sample's line, if it is a video [T, C, H, W]."""
    if sample.image.ndim != 4:
        return {}
    videos[folder / name] = sample.image
    return {"video": name}


def _write_video(path: Path, frames: torch.Tensor, fps: float) -> None:
    """Write frames uint8 [T, 3, H, W] to `path`, which ends in `.webp`; played in a loop, without sound.

    Args:
        fps: frames a second; a frame is shown for a whole number of milliseconds.
    """
    first, *others = as_images(frames)
    first.save(
        path,
        "WEBP",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        quality=VIDEO_QUALITY,
        method=VIDEO_EFFORT,
    )


def _write_videos(videos: Mapping[Path, torch.Tensor], fps: float) -> None:
    """Write several videos in parallel: one with 121 frames of 704 x 1280 takes seconds."""
    with ThreadPoolExecutor() as threads:
        for written in [threads.submit(_write_video, path, frames, fps) for path, frames in videos.items()]:
            written.result()
