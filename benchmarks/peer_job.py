"""The job that the programs of `peers.py` run, as plain values in a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


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
    every_steps: int
    """Steps between evaluations, and between checkpoints."""

    @property
    def images(self) -> int:
        """Images of a step."""
        return self.prompts * self.samples


def read_job(file: str) -> PeerJob:
    """The job of a file."""
    return PeerJob(**json.loads(Path(file).read_text(encoding="utf-8")))


def write_job(job: PeerJob, file: Path) -> None:
    """Write the job for `read_job`."""
    file.write_text(json.dumps(asdict(job), indent=1), encoding="utf-8")
