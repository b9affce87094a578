"""Stable Diffusion 3 one step at a time, on vLLM-Omni's engine in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STEPS, AT_ONCE = 4, 4
SEEDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from verl_omni.models.tiny import make_tiny_sd3

    made: Path = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_sd3(made)
    return made


def drawn(model: Path, *, step_execution: bool) -> tuple[list[Any], list[Any], list[int]]:
    """Samples one by one, the same samples batched, and the batch size of each forward pass of the transformer."""
    return asyncio.run(_drawn(model, step_execution))


async def _drawn(model: Path, step_execution: bool) -> tuple[list[Any], list[Any], list[int]]:
    from vllm_omni.entrypoints import AsyncOmni

    from verl_omni.pipelines.sd3.engine_pipeline import SD3RolloutPipeline
    from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode
    from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
    from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

    mode, settings = DiffusionMode(), DiffusionModelConfig(path=str(model))
    rollout = DiffusionRolloutConfig(step_execution=step_execution)
    arguments: dict[str, Any] = {
        "model": str(model), "dtype": "float32", "enforce_eager": True, "distributed_executor_backend": "uni",
        "max_num_seqs": AT_ONCE, "request_batch_max_wait_ms": 250.0,
    }  # fmt: skip
    mode.complete_engine_args(arguments, rollout, settings)
    forwards: list[int] = []
    plain = SD3RolloutPipeline._velocity

    def counted(self: Any, x: Any, *rest: Any, **conditions: Any) -> Any:
        forwards.append(x.shape[0])
        return plain(self, x, *rest, **conditions)

    SD3RolloutPipeline._velocity = counted
    engine = AsyncOmni(**arguments)

    async def sample(seed: int) -> Any:
        params = {
            "height": 64, "width": 64, "num_inference_steps": STEPS, "guidance_scale": 1.0 + (seed > 2),
            "max_sequence_length": 16, "seed": seed, "logprobs": True, "noise_level": 0.7, "sde_window_size": 2,
        }  # fmt: skip
        request = RolloutRequest(settings.tokenizer("a red circle").input_ids, negative_prompt_ids=[])
        made = mode.engine_request(request, params, None, rollout, engine.default_sampling_params_list)
        return mode.to_output(await last_output(engine.generate(request_id=str(seed), **made)), params, 0)

    try:
        alone = [await sample(seed) for seed in SEEDS]
        forwards.clear()
        return alone, await asyncio.gather(*[sample(seed) for seed in SEEDS]), forwards
    finally:
        engine.shutdown()
        SD3RolloutPipeline._velocity = plain


def test_step_execution_gives_the_same_samples_as_whole_requests(model: Path) -> None:
    """Two requests with guidance and two without, which cannot share a batch; images and recorded tensors."""
    whole, _, _ = drawn(model, step_execution=False)
    stepped, together, forwards = drawn(model, step_execution=True)
    for one, other in zip(whole, stepped, strict=True):
        assert torch.equal(one.diffusion_output, other.diffusion_output)
        assert torch.equal(one.log_probs, other.log_probs) and one.log_probs.shape == (2,)
        assert one.extra_fields.keys() == other.extra_fields.keys()
        for name in (
            "all_latents",
            "all_timesteps",
            "all_sigmas",
            "velocity_projections",
            "prompt_embeds",
            "pooled_prompt_embeds",
        ):
            assert torch.equal(one.extra_fields[name], other.extra_fields[name]), name
    assert sum(forwards) == STEPS * len(SEEDS), "every request takes each of its steps once"
    assert max(forwards) > 1, "nothing was batched"
    for one, other in zip(stepped, together, strict=True):
        assert (one.diffusion_output.int() - other.diffusion_output.int()).abs().max() <= 1
