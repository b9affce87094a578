"""Qwen-Image: shapes of a sample's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.pipelines.sample_shapes import Configs, example

if TYPE_CHECKING:
    from torch import Tensor

SPLITS_SEQUENCE = True
DIVIDED_BY_ENGINES = {"num_attention_heads": "attention heads"}


def sample(configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
    """See `sample_shapes.SampleShapes`; latents are packed, 2 x 2 in a patch."""
    import torch

    transformer = configs["transformer"]
    (_, _, height, width) = decoder_input(configs, pipeline)
    embeds = example(prompt_rows, transformer["joint_attention_dim"])
    mask = example(prompt_rows, dtype=torch.int64)
    return {
        "latents": example((height // 2) * (width // 2), transformer["in_channels"]),
        "img_shapes": torch.tensor([1, height // 2, width // 2]),
        "prompt_embeds": embeds,
        "prompt_embeds_mask": mask,
        "negative_prompt_embeds": embeds,
        "negative_prompt_embeds_mask": mask,
    }


def sequence_length(configs: Configs, pipeline: Any) -> int:
    """See `sample_shapes.SampleShapes`; the prompt's rows are split too, and `training.velocity` pads them."""
    return sample(configs, pipeline, 1)["latents"].shape[0]


def decoder_input(configs: Configs, pipeline: Any) -> tuple[int, ...]:
    """See `sample_shapes.SampleShapes`."""
    factor = size_step(configs) // 2
    return (configs["vae"]["z_dim"], 1, pipeline.height // factor, pipeline.width // factor)


def size_step(configs: Configs) -> int:
    """See `sample_shapes.SampleShapes`."""
    return 2 * 2 ** len(configs["vae"].get("temperal_downsample", (False, True, True)))
