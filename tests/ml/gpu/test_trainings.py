"""Short trainings on one and on two NVIDIA GPUs: families, algorithms, ways to save memory, a judge on the same GPU.

Engine and trainer share the GPUs and compute in bfloat16, the defaults of accelerators.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from verl_omni.models.tiny import MAKERS

pytestmark = [pytest.mark.timeout(600), pytest.mark.gpu]

STEPS = 3
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
PIPELINE = f"{ROLLOUT}.pipeline"
FSDP = f"{ACTOR}.fsdp_config"
LOSS = f"{ACTOR}.diffusion_loss.loss_mode"
JUDGE = "reward.reward_model"
ONE_STEP = f"{ROLLOUT}.algo.noise_level=0"  # trained on final samples, which are generated without noise
VIDEOS = f"{PIPELINE}.num_frames=5"
LONG = "data.max_prompt_length=400"  # Qwen-Image's template of a prompt has more tokens than others' prompts
# Name -> (family, settings)
TRAININGS: dict[str, tuple[str, Sequence[str]]] = {
    "Stable Diffusion 3": ("sd3", ()),
    "Qwen-Image": ("qwen_image", (LONG, f"{PIPELINE}.max_sequence_length=32")),
    "Qwen-Image-Edit-Plus": ("qwen_image_edit_plus", (LONG, f"{PIPELINE}.max_sequence_length=1024")),
    "Wan": ("wan", (VIDEOS,)),
    "Wan 2.2 with two transformers": ("wan_a14b", (VIDEOS,)),
    "DiffusionNFT": ("sd3", (f"{LOSS}=diffusion_nft", ONE_STEP)),
    "DiffusionDPO": ("sd3", (f"{LOSS}=diffusion_dpo", ONE_STEP)),
    "Flow-DPPO": ("sd3", (f"{LOSS}=flow_dppo",)),
    "GRPO-Guard": ("sd3", (f"{LOSS}=grpo_guard",)),
    "KL and a moving average": ("sd3", (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.ema_decay=0.9")),
    "all weights, offloaded": (
        "sd3",
        (f"{MODEL}.lora_rank=0", f"{FSDP}.param_offload=true", f"{FSDP}.optimizer_offload=true"),
    ),
    "compiled layers": ("sd3", (f"{FSDP}.use_torch_compile=true",)),
    "checkpointing and guidance": (
        "sd3",
        (f"{MODEL}.enable_gradient_checkpointing=true", f"{PIPELINE}.guidance_scale=3.0"),
    ),
}
TWO = "trainer.n_gpus_per_node=2"
# On two GPUs: the trainer's ranks share weights or sequences, and each GPU has an engine, or both share one.
ON_TWO: dict[str, tuple[str, Sequence[str]]] = {
    "an adapter": ("sd3", ()),
    "all weights, offloaded": TRAININGS["all weights, offloaded"],
    "shared sequences": ("wan", (VIDEOS, f"{FSDP}.ulysses_sequence_parallel_size=2")),
    "an engine on both": ("qwen_image", (*TRAININGS["Qwen-Image"][1], f"{ROLLOUT}.tensor_model_parallel_size=2")),
    "checkpoints in the background": ("sd3", ("trainer.save_freq=1", f"{ACTOR}.checkpoint.async_save=true")),
}
SERVED = (
    "reward.scorer=genrm_ocr",
    "reward.scorer_kwargs.max_tokens=4",
    f"{JUDGE}.enable=true",
    f"{JUDGE}.rollout.tensor_model_parallel_size=1",
    f"{JUDGE}.rollout.max_model_len=512",
    f"{JUDGE}.rollout.max_num_seqs=8",
    f"{JUDGE}.rollout.gpu_memory_utilization=0.2",
)


def train(folder: Path, family: str, *more: str, gpus: int = 1) -> list[dict[str, Any]]:
    """Train a tiny model of a family; the metrics of the steps, of which the first is before any training."""
    MAKERS[family](folder / "model")
    rows: list[dict[str, Any]] = []
    for color in ("red", "blue", "green", "grey"):
        rows.append({"prompt": f"a {color} circle", "ground_truth": "the answer"})
        if "edit" in family:
            Image.new("RGB", (64, 64), color).save(folder / f"{color}.png")
            rows[-1]["images"] = [f"{color}.png"]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (
        f"data.train_files='{prompts}'",
        f"data.val_files='{prompts}'",
        "data.train_batch_size=2",
        "data.max_prompt_length=16",
        "reward.scorer=brightness",
        f"trainer.default_local_dir='{folder / 'run'}'",
        f"trainer.total_training_steps={STEPS}",
        f"{MODEL}.path='{folder / 'model'}'",
        f"{MODEL}.lora_rank=4",
        f"{ACTOR}.ppo_mini_batch_size=2",
        f"{ACTOR}.optim.lr=1e-3",
        f"{ROLLOUT}.n=4",
        f"{PIPELINE}.max_sequence_length=16",
        f"{PIPELINE}.height=64",
        f"{PIPELINE}.width=64",
        f"{PIPELINE}.num_inference_steps=4",
    )
    done = subprocess.run(
        [sys.executable, "-m", "verl_omni.trainer.main_diffusion", *settings, *more],
        timeout=550,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert f"the policy is trained on {gpus} x cuda" in done.stdout
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["weights/version"] for line in lines] == list(range(STEPS + 1))
    for line in lines[1:]:
        assert line["actor/optimizer_steps"] == 1 and math.isfinite(line["actor/loss"])
    # A reward may be the same for all samples of a prompt in one of the steps.
    norms = [line["actor/grad_norm"] for line in lines[1:]]
    assert all(map(math.isfinite, norms)) and any(norm > 0 for norm in norms)
    return lines


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_runs_on_the_gpu(tmp_path: Path, name: str) -> None:
    """Whether velocities of engine and trainer agree is checked by the trainer, which stops otherwise."""
    family, settings = TRAININGS[name]
    lines = train(tmp_path, family, *settings)
    on_steps = not any("diffusion_nft" in setting or "diffusion_dpo" in setting for setting in settings)
    assert all(("rollout_corr/velocity_rel_diff" in line) == on_steps for line in lines[1:])


@pytest.mark.parametrize("name", ON_TWO)
def test_a_training_runs_on_two_gpus(tmp_path: Path, name: str) -> None:
    if (devices := torch.cuda.device_count()) < 2:
        pytest.skip(f"it needs two GPUs, and this machine has {devices}")
    family, settings = ON_TWO[name]
    lines = train(tmp_path, family, TWO, *settings, gpus=2)
    assert all("rollout_corr/velocity_rel_diff" in line for line in lines[1:])


def test_a_judge_on_the_same_gpu_scores_the_samples(tmp_path: Path) -> None:
    from verl_omni.models.vision_language import make_tiny_qwen3_vl

    make_tiny_qwen3_vl(tmp_path / "judge")
    lines = train(tmp_path, "sd3", *SERVED, f"{JUDGE}.model_path='{tmp_path / 'judge'}'")
    assert all(0 <= line["reward/mean"] <= 1 for line in lines[1:])
