"""What a user's module may register: tests import it, or copy it into a folder of their own, as `my_extension`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.extensions import register_advantage, register_algorithm, register_family, register_loss, register_reward
from verl_omni.pipelines.sd3 import training
from verl_omni.workers.algorithms.flow_grpo import FlowGRPO, GRPOLossConfig


@dataclass
class ScaledLossConfig(GRPOLossConfig):
    """The settings of Flow-GRPO, and one more."""

    scale: float = 2.0


@register_algorithm("my_algorithm")
class MyAlgorithm(FlowGRPO):
    """Flow-GRPO with scaled advantages."""

    settings = ScaledLossConfig

    def training_batch(self, samples: Any, loss: Any, config: Any, seed: int) -> Any:
        batch = super().training_batch(samples, loss, config, seed)
        return {**batch, "advantages": loss.scale * batch["advantages"]}


@register_loss("my_loss")
def likelihood(log_ratio: Tensor, advantages: Tensor, settings: Any) -> Tensor:
    """The policy gradient without a clip range."""
    return -advantages.clamp(-settings.adv_clip_max, settings.adv_clip_max) * log_ratio.exp()


@register_advantage("my_advantage")
def centred(rewards: Tensor, groups: Sequence[str], settings: Any) -> Tensor:
    """Rewards minus their mean."""
    return rewards - rewards.mean()


@register_reward("my_reward")
def redness(data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, weight: float = 1.0) -> float:
    """Mean of the red channel."""
    return weight * float(solution_image[0].float().mean() / 255)


@register_family(
    "MyPipeline",
    pipeline="verl_omni.pipelines.sd3.engine_pipeline:SD3RolloutPipeline",
    pre_process="get_pre_process_func",
)
class MyFamily:
    """Stable Diffusion 3 under another name, with fewer layers to adapt."""

    CONDITIONS = training.CONDITIONS
    LAYERS = training.LAYERS
    CHAT_TEMPLATE = training.CHAT_TEMPLATE
    LORA_TARGETS = ("attn.to_q",)

    def guidance(self, pipeline: Any) -> float:
        return training.guidance(pipeline)

    def prompt_rows(self, max_sequence_length: int, tokenizer_length: int) -> int:
        return training.prompt_rows(max_sequence_length, tokenizer_length)

    def velocity(
        self,
        transformer: Any,
        batch: Mapping[str, Tensor],
        x: Tensor,
        timestep: Tensor,
        guidance_scale: float,
        *,
        dtype: torch.dtype,
    ) -> Tensor:
        return training.velocity(transformer, batch, x, timestep, guidance_scale, dtype=dtype)
