"""The job that the programs of `peers.py` run, as plain values in a JSON file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PeerJob:
    """What the programs have in common."""

    model: str
    """Folder in diffusers' layout."""
    folder: str
    """Where adapters are saved."""
    train_prompts: list[str]
    held_out_prompts: list[str]
    steps: int
    prompts: int
    """Prompts of a step."""
    samples: int
    """Images of each prompt."""
    pixels: int
    """Height and width."""
    scorer: str
    """A module of `verl_omni.reward_loop.rewards`."""
    denoising_steps: int
    window: int
    """First denoising steps, which add noise and are trained on."""
    noise_level: float
    text_length: int
    """Tokens of the T5 encoder."""
    learning_rate: float
    lora_rank: int
    lora_alpha: int
    lora_targets: list[str]

    @property
    def images(self) -> int:
        """Images of a step."""
        return self.prompts * self.samples


def scores_of(job: PeerJob, pixels: Tensor, prompts: Sequence[str]) -> list[float]:
    """A score for each image of `pixels`, uint8 [B, 3, H, W]."""
    compute_score = importlib.import_module(f"verl_omni.reward_loop.rewards.{job.scorer}").compute_score
    scores = [compute_score(job.scorer, image, prompt, {}) for image, prompt in zip(pixels, prompts, strict=True)]
    return [score["score"] if isinstance(score, dict) else score for score in scores]


def read_job(file: str) -> PeerJob:
    """The job of a file."""
    return PeerJob(**json.loads(Path(file).read_text(encoding="utf-8")))


def write_job(job: PeerJob, file: Path) -> None:
    """Write the job for `read_job`."""
    file.write_text(json.dumps(asdict(job), indent=1), encoding="utf-8")
