"""A tiny VideoReward with random weights, in the layout of the released files: a base model, and a checkpoint.

NumPy makes the weights, so that they are the same with every version of torch and transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.ml.reward_loop import tiny_hpsv3
from tests.ml.reward_loop.tiny_hpsv3 import BYTES, LAYERS, SPECIAL, WIDTH, write_base

TOKENS = BYTES + len(SPECIAL) + 3  # with the three of the reward, the last
RANK = 2
ADAPTED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
ADAPTED_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# What a model of this kind is asked here. The repository's wording belongs to the released weights.
TEMPLATE = (
    "\nRate this video.\nLook: <|VQ_reward|>\nEND\nMotion: <|MQ_reward|>\nEND\n"
    "Prompt - {text_prompt}\nMatch: <|TA_reward|>\nEND\n"
)
PROMPTS = ["a red circle", "a blue {square}", "two red circles that roll, and a very long prompt " * 3]
FPS = 8.0  # of the videos
# The parts of model_config.json that scores depend on, with the values of the released file except for the adapter.
CONFIG: dict[str, Any] = {
    "data_config": {
        "meta_data": "a.csv",
        "data_dir": "/a",
        "eval_dim": ["VQ", "MQ", "TA"],
        "fps": 2.0,
        "num_frames": None,
        "max_frame_pixels": 200704,
        "sample_type": "uniform",
        "prompt_template_type": "detailed_special",
    },
    "training_args": {"learning_rate": 2e-06},
    "model_config": {
        "model_name_or_path": "Qwen/Qwen2-VL-2B-Instruct",
        "output_dim": 3,
        "use_special_tokens": True,
        "reward_token": "special",
        "torch_dtype": "float32",
    },
    "peft_lora_config": {
        "lora_enable": True,
        "lora_r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_namespan_exclude": ["lm_head", "rm_head", "embed_tokens", "visual"],
        "use_rslora": False,
    },
    "inference_config": {
        "VQ_mean": 3.6757,
        "VQ_std": 2.2476,
        "MQ_mean": 1.1646,
        "MQ_std": 1.3811,
        "TA_mean": 2.8105,
        "TA_std": 2.5121,
    },
}


def make_weights(outputs: int = 3) -> dict[str, torch.Tensor]:
    """All weights, fp32, with the names that the released file has.

    Args:
        outputs: of the head: 3, or 1 for all tokens.
    """
    random = np.random.default_rng(2)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.from_numpy((random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32))

    base = {name: weight for name, weight in tiny_hpsv3.make_weights().items() if "rm_head" not in name}
    base["model.embed_tokens.weight"] = drawn(TOKENS, WIDTH) * WIDTH**0.5
    base["lm_head.weight"] = drawn(TOKENS, WIDTH)
    base["rm_head.weight"] = 3 * drawn(3, WIDTH)[:outputs]
    weights = {}
    adapted = [f"model.layers.{n}.{name}" for n in range(LAYERS) for name in (*ADAPTED, *ADAPTED_MLP)]
    for name, tensor in base.items():
        layer, _, part = name.rpartition(".")
        if layer not in adapted:
            weights[f"base_model.model.{name}"] = tensor
            continue
        weights[f"base_model.model.{layer}.base_layer.{part}"] = tensor
        if part == "weight":
            weights[f"base_model.model.{layer}.lora_A.default.weight"] = drawn(RANK, tensor.shape[1])
            weights[f"base_model.model.{layer}.lora_B.default.weight"] = drawn(tensor.shape[0], RANK)
    return weights


def write_checkpoint(folder: Path, weights: dict[str, torch.Tensor], step: int = 11352, **changes: Any) -> None:
    """The layout of the released repository; `changes` replace values of parts of CONFIG."""
    (folder / f"checkpoint-{step}").mkdir(parents=True, exist_ok=True)
    torch.save(weights, folder / f"checkpoint-{step}" / "model.pth")
    config = {name: part | changes.get(name, {}) for name, part in CONFIG.items()}
    (folder / "model_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_all(folder: Path) -> None:
    """`base`, `checkpoints`, and the file with the template."""
    write_base(folder / "base")
    write_checkpoint(folder / "checkpoints", make_weights())
    write_template(folder / "prompt_template.py", TEMPLATE)


def write_template(path: Path, template: str) -> None:
    path.write_text(f"import missing\nSIMPLE_PROMPT = 'x'\nDETAILED_PROMPT_WITH_SPECIAL_TOKEN = {template!r}\n")


def videos() -> list[torch.Tensor]:
    """Videos uint8 [T, 3, H, W] of several lengths and sizes, smaller and larger than what the model sees."""
    random = np.random.default_rng(3)
    sizes = [(21, 64, 64), (5, 480, 640), (2, 96, 301)]
    return [torch.from_numpy(random.integers(0, 256, (n, 3, *size), dtype=np.uint8)) for n, *size in sizes]
