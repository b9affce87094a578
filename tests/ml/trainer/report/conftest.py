"""A synthetic run folder, written by the trainer's own writer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from verl_omni.trainer.run.run_folder import RunFolder, ShownSample

PROMPTS = ("a <b>cat</b>", 'a "dog" & a cat')
SETTINGS = {
    "trainer": {"seed": 3, "nnodes": 1, "n_gpus_per_node": 2},
    "data": {"seed": 4, "train_batch_size": 4},
    "actor_rollout_ref": {
        "model": {"path": "/models/tiny-sd3", "architecture": "StableDiffusion3Pipeline", "lora_rank": 16},
        "actor": {
            "diffusion_loss": {"loss_mode": "flow_grpo"},
            "optim": {"lr": 0.004, "lr_scheduler_type": "constant", "lr_warmup_steps": 5},
        },
        "rollout": {
            "n": 8,
            "pipeline": {"num_inference_steps": 10, "guidance_scale": 4.5, "height": 64, "width": 32},
            "val_kwargs": {"seed": 42, "pipeline": {"num_inference_steps": 40, "guidance_scale": None}},
        },
    },
    "reward": {"scorer": "color", "scorer_kwargs": {"color": "red"}},
}


def record(folder: RunFolder, step: int, **more: Any) -> None:
    """Record a training step; even steps also have an evaluation with images."""
    line: dict[str, Any] = {"step": step, "weights/version": step}
    if step:
        line |= {"reward/mean": 0.1 * step, "reward/std": 0.1, "reward/correct/mean": 0.1 * step, "images_per_s": 4.0}
        line |= {f"timing_s/{name}": 1.0 for name in ("generate", "update", "sync")}
        line |= {"timing_s/step": 3.5, "rollout_corr/mean_abs_diff": 1e-8 * step, "actor/lr": 0.001}
        line |= {"actor/grad_norm": 0.5 / step, "diversity/reward_std_within_prompt": 0.1 / step}
    if step % 2 == 0:
        line |= {"val/reward/mean": 0.2 * step, "val/reward/stderr": 0.02, "val/n": 9, "val/correct/mean": 0.5}
        line |= {"timing_s/eval": 30.0, "diversity/images": 12.0}
        image = torch.full((3, 8, 8), 40 * step % 256, dtype=torch.uint8)
        folder.samples(
            step, [ShownSample(prompt, 7 + number, 0.1 * step, image) for number, prompt in enumerate(PROMPTS)], 24
        )
    folder.step(line | more)


@pytest.fixture
def begun(tmp_path: Path) -> Callable[..., RunFolder]:
    """Make a run that recorded steps 0 to `last` of `total`."""

    def make(last: int = 4, total: int = 4, resumed_from: int | None = None, **started: bool) -> RunFolder:
        folder = RunFolder(tmp_path / "demo")
        settings = OmegaConf.merge(SETTINGS, {"trainer": {"total_training_steps": total}})
        folder.start(settings, resumed_from=resumed_from, **started)  # type: ignore[arg-type]
        for step in range(0 if resumed_from is None else resumed_from + 1, last + 1):
            record(folder, step)
        return folder

    return make


@pytest.fixture
def run(begun: Callable[..., RunFolder]) -> Path:
    """A complete run of four steps with evaluations at 0, 2 and 4."""
    return begun().path
