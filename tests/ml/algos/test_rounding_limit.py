"""The limit of the agreement check in bfloat16, for models as deep as released ones, with guidance.

Weights are random, and heads are few: what counts are depth and guidance.
"""

import math
from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel
from torch import Tensor, nn

from verl_omni.algos import agreement
from verl_omni.pipelines.registry import training_adapter
from verl_omni.workers.actor.build import cast
from verl_omni.workers.actor.policy import Policy
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig, GRPOObjective

ROWS = 2
WIDTH = 64
SIGMAS = torch.tensor([[0.7, 0.6], [0.3, 0.2]])


def wan() -> tuple[str, nn.Module, tuple[int, ...], float]:
    """As deep as Wan 2.1 and 2.2 of 14 billion parameters."""
    module = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=128,
        in_channels=16,
        out_channels=16,
        text_dim=WIDTH,
        freq_dim=128,
        ffn_dim=512,
        num_layers=40,
    )
    return "WanPipeline", module, (16, 2, 8, 8), 5.0


def sd3() -> tuple[str, nn.Module, tuple[int, ...], float]:
    """As deep as Stable Diffusion 3.5 Large."""
    module = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=38,
        attention_head_dim=64,
        num_attention_heads=4,
        caption_projection_dim=256,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        pos_embed_max_size=64,
        qk_norm="rms_norm",
    )
    return "StableDiffusion3Pipeline", module, (16, 16, 16), 4.5


def qwen_image() -> tuple[str, nn.Module, tuple[int, ...], float]:
    """As deep as Qwen-Image."""
    module = QwenImageTransformer2DModel(
        in_channels=64,
        out_channels=16,
        num_layers=60,
        attention_head_dim=128,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
    )
    return "QwenImagePipeline", module, (64, 64), 4.0


def randomize(module: nn.Module) -> None:
    """Modulation and output as large as in trained models; diffusers initializes them to nearly nothing."""
    for name, parameter in module.named_parameters():
        if "scale_shift_table" in name:
            parameter.normal_(0, 0.5)
        elif parameter.ndim == 2 and any(part in name for part in ("norm", "mod", "proj_out")):
            parameter.normal_(0, 0.5 * parameter.shape[1] ** -0.5)


def policies(make: Any) -> tuple[Policy, Policy, dict[str, Tensor], float]:
    """A policy in bfloat16, the same rounded weights in float32, a batch, and the guidance scale."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        architecture, module, shape, scale = make()
        randomize(module.eval())
        prompts = {
            f"{sign}{name}": torch.randn(ROWS, *size)
            for sign in ("", "negative_")
            for name, size in (("prompt_embeds", (16, WIDTH)), ("pooled_prompt_embeds", (WIDTH,)))
        }
        latents = torch.randn(ROWS, 2, *shape)
    masks = {f"{sign}prompt_embeds_mask": torch.ones(ROWS, 16, dtype=torch.bool) for sign in ("", "negative_")}
    rounded = make()[1].eval()
    exact = make()[1].eval()
    rounded.load_state_dict(module.state_dict())
    cast(rounded, torch.bfloat16, frozenset(getattr(rounded, "_keep_in_fp32_modules", None) or ()))
    exact.load_state_dict({name: tensor.float() for name, tensor in rounded.state_dict().items()})
    adapter = training_adapter(architecture)
    pair = [
        Policy(model, adapter, dtype=dtype, lora=False, keeps_old=False)
        for model, dtype in ((rounded, torch.bfloat16), (exact, torch.float32))
    ]
    batch = {
        **prompts,
        **masks,
        "all_latents": latents,
        "all_timesteps": SIGMAS[:, :1] * 1000,
        "all_sigmas": SIGMAS,
        "img_shapes": torch.tensor([[1, 8, 8]] * ROWS),
        "sigma_max": torch.full((ROWS, 1), 0.9),
        "advantages": torch.tensor([1.0, -1.0]),
        "rollout_log_probs": torch.zeros(ROWS, 1),
    }
    return pair[0], pair[1], batch, scale


@pytest.mark.slow
@pytest.mark.parametrize("make", [wan, sd3, qwen_image])
@torch.no_grad()
def test_rounding_of_deep_guided_models_passes_and_an_error_of_1_percent_does_not(make: Any) -> None:
    policy, exact, batch, scale = policies(make)
    engine = exact.velocity(batch, batch["all_latents"][:, 0], batch["all_timesteps"][:, 0], scale)

    def check(engine: Tensor) -> dict[str, float]:
        objective = GRPOObjective(
            policy,
            FlowGRPOLossConfig(),
            kl_loss_coef=None,
            noise_level=0.7,
            sde_type="sde",
            guidance_scale=scale,
            velocity_tolerance=agreement.VELOCITY_TOLERANCES[torch.bfloat16],
            limit_by_depth=True,
        )
        projections = agreement.velocity_projections(engine)[:, None]
        return objective.summarize(objective.term({**batch, "velocity_projections": projections}, 0)[1], ROWS)

    metrics = check(engine)
    assert metrics["rollout_corr/velocity_rel_diff"] > 0.04, "0.05 to 0.09, by the processor"
    for wrong in (1.01, 0.99):
        with pytest.raises(agreement.VelocityMismatch, match=r"the trainer's velocities are 0\.0.* than the engine's"):
            check(wrong * engine)
    noise = torch.randn(engine.shape, generator=torch.Generator().manual_seed(1)) * engine.std()
    with pytest.raises(agreement.VelocityMismatch, match="differ by"):
        check(engine + 0.3 * noise)


def test_without_guidance_and_depth_the_limit_of_bfloat16_stays() -> None:
    assert agreement.rounding_limit(60, 1.0) < agreement.VELOCITY_TOLERANCES[torch.bfloat16]
    assert agreement.rounding_limit(40, 5.0) == pytest.approx(0.004 * math.sqrt(40) * math.sqrt(25 + 16))
