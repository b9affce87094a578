"""Samples of steps and evaluations, as files for people who want to see every one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from verl_omni.trainer.run_folder import Sample, as_picture, atomic_write


def write_samples(folder: Path, step: int, samples: Sequence[Sample], limit: int | None) -> None:
    """Write `<folder>/<step>.jsonl` and the pictures it names; an older file of the step is replaced.

    A line has `step`, `input` (the prompt), `output` (the picture's path in `folder`), `score` and `seed`.

    Args:
        limit: how many of them, from the first; None: all.
    """
    pictures = folder / str(step)
    pictures.mkdir(parents=True, exist_ok=True)
    lines = []
    for place, sample in enumerate(samples[:limit]):
        name = f"{step}/{place:04d}.png"
        Image.fromarray(as_picture(sample.image).permute(1, 2, 0).numpy()).save(folder / name)
        lines.append({
            "step": step, "input": sample.prompt, "output": name, "score": sample.score, "seed": sample.seed,
        })  # fmt: skip
    atomic_write(folder / f"{step}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
