"""Runs flow_grpo's trainer of Stable Diffusion 3, `scripts/train_sd3.py`, with the job of `peers.py`.

    python benchmarks/flow_grpo_job.py FLOW_GRPO JOB.json

FLOW_GRPO is a checkout of https://github.com/yifan123/flow_grpo; it needs `pip install ml_collections` besides what the
trainer needs. Its files are not changed. What they fix and the job has otherwise is replaced in memory: the scorer, the
layers and the rank of the adapter, the number of text tokens, and W&B, whose log marks the end of a step. This file is
also the trainer's configuration file (`get_config`).
"""

import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_job import PeerJob, read_job, scores_of

FOLDER = "FLOW_GRPO_FOLDER"
REPLACED = ("flow_grpo.diffusers_patch.train_dreambooth_lora_sd3", "flow_grpo.rewards", "peft", "wandb")


def get_config(file: str) -> Any:
    """The settings of train_sd3.py for a job."""
    job = read_job(file)
    base = runpy.run_path(f"{os.environ[FOLDER]}/config/base.py")
    config = base["get_config"]()
    config.pretrained.model = job.model
    config.mixed_precision = "no"
    config.resolution = job.pixels
    config.dataset = job.folder
    config.prompt_fn = "general_ocr"
    config.reward_fn = {job.scorer: 1.0}
    config.logdir = job.folder
    config.save_dir = job.folder
    config.eval_freq = job.steps
    config.save_freq = job.steps
    config.sample.num_steps = job.denoising_steps
    config.sample.eval_num_steps = job.denoising_steps
    config.sample.guidance_scale = 1.0
    config.sample.noise_level = job.noise_level
    config.sample.train_batch_size = job.images
    config.sample.test_batch_size = job.images
    config.sample.num_image_per_prompt = job.samples
    config.sample.num_batches_per_epoch = 1
    config.train.batch_size = job.images
    config.train.cfg = False
    config.train.learning_rate = job.learning_rate
    config.train.timestep_fraction = (job.window + 0.5) / job.denoising_steps  # rounded down there
    return config


def score_function(job: PeerJob) -> Callable[..., tuple[dict[str, list[float]], dict[str, Any]]]:
    """Stands in for what `flow_grpo.rewards.multi_score` returns."""

    def score(images: Any, prompts: Any, metadata: Any, only_strict: bool = True) -> Any:
        import torch

        scores = scores_of(job, (images * 255).round().clamp(0, 255).to(torch.uint8), prompts)
        return {job.scorer: scores, "avg": scores}, {}

    return score


def limited(tokenizer: Any) -> Callable[..., Any]:
    """The tokenizer with at most the tokens that its encoder has positions for; the trainer's files say 77."""

    def tokenize(prompts: Any, max_length: int, **options: Any) -> Any:
        return tokenizer(prompts, max_length=min(max_length, tokenizer.model_max_length), **options)

    return tokenize


def replace_fixed_values(job: PeerJob) -> None:
    """Replace in memory what the trainer's files fix."""
    modules: list[Any] = [importlib.import_module(name) for name in REPLACED]
    encoding, rewards, peft, wandb = modules
    losses: list[float] = []

    def log(values: dict[str, Any], step: int | None = None) -> None:
        if "loss" in values:
            losses.append(float(values["loss"]))
            is_complete = len(losses) < job.steps
        else:
            is_complete = "eval_images" in values and len(losses) == job.steps
        if is_complete:
            print(f"step {len(losses)}: loss {losses[-1]:.4f}", flush=True)
            if len(losses) == job.steps:
                raise SystemExit(0)

    original = encoding.encode_prompt

    def encode_prompt(encoders: Any, tokenizers: Any, prompt: Any, max_sequence_length: int) -> Any:
        return original(encoders, [limited(tokenizer) for tokenizer in tokenizers], prompt, job.text_length)

    encoding.encode_prompt = encode_prompt
    rewards.multi_score = lambda device, weights: score_function(job)
    adapter = {"r": job.lora_rank, "lora_alpha": job.lora_alpha, "target_modules": job.lora_targets}
    config_class = peft.LoraConfig
    peft.LoraConfig = lambda **fixed: config_class(**fixed | adapter)
    wandb.init = lambda **arguments: None
    wandb.log = log
    wandb.Image = lambda *arguments, **named: None


def main(arguments: list[str]) -> None:
    """Run the trainer until the job's last step."""
    checkout = Path(arguments[0]).resolve()
    os.environ[FOLDER] = str(checkout)
    job = read_job(arguments[1])
    for name, prompts in (("train", job.train_prompts), ("test", job.held_out_prompts)):
        (Path(job.folder) / f"{name}.txt").write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
    sys.path.insert(0, str(checkout))
    replace_fixed_values(job)
    script = str(checkout / "scripts" / "train_sd3.py")
    sys.argv = [script, f"--config={Path(__file__).resolve()}:{Path(arguments[1]).resolve()}"]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
