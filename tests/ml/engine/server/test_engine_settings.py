"""Settings in `rollout.engine_kwargs.vllm_omni` arrive in the worker of the real engine, and have their effect."""

from __future__ import annotations

from typing import Any

import pytest

from verl_omni.settings_schema.engine_settings import GROUP, SETTINGS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = ["a red circle", "two cat photo"]
# Set in both spellings, as the command line of a recipe.
GIVEN: dict[str, Any] = {
    "boundary-ratio": 0.875,
    "diffusion-attention-backend": "TORCH_SDPA",
    "diffusion_attention_config.per_role.joint.backend": "TORCH_SDPA",
    "diffusion_compile_dynamic": False,
    "diffusion-compile-granularity": "full",
    "enable_diffusion_pipeline_profiler": True,
    "enable_multithread_weight_load": False,
    "enable_prompt_embed_cache": True,
    "fa_deterministic": True,
    "flow_shift": 2.5,
    "force_cutlass_fp8": True,
    "init_timeout": 500,
    "max-num-seqs": 3,
    "num_weight_load_threads": 2,
    "prompt_embed_cache_size": 5,
    "request_batch_max_wait_ms": 9,
    "vae_parallel_mode": "spatial_shard_width",
    "vae_use_slicing": True,
    "vae-use-tiling": True,
}
# Need several devices, an accelerator or a model with more blocks (workers/rollout/server/test_engine_stage.py).
ELSEWHERE = {
    "cache_backend",
    "cache_config",
    "diffusion_kv_cache_dtype",
    "diffusion_kv_cache_skip_layers",
    "diffusion_kv_cache_skip_steps",
    "enable_cache_dit_summary",
    "distributed_executor_backend",
    "enable_cpu_offload",
    "enable_layerwise_offload",
    "quantization",
    "quantization_config",
    "vae_patch_parallel_size",
}


def name_of(given: str) -> str:
    return given.partition(".")[0].replace("-", "_")


@pytest.fixture(scope="module")
def stack(start_tiny: Any) -> Any:
    text = {True: "true", False: "false"}
    overrides = (
        f"+{GROUP}.{name}={text.get(value, value) if isinstance(value, bool) else value}"
        for name, value in GIVEN.items()
    )
    _, running = start_tiny(
        PROMPTS,
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.external_lib=tests.ml.engine.reporting_worker",
        *overrides,
    )
    running.weights.update_weights(global_steps=0)
    return running


def reported(stack: Any) -> dict[str, Any]:
    import ray

    call = stack.servers.server_handles[0].collective_rpc.remote("report_settings")
    (found,) = ray.get(call, timeout=120)
    return dict(found)


def test_every_documented_setting_is_tested() -> None:
    assert {name_of(given) for given in GIVEN} | ELSEWHERE == SETTINGS.keys()


def test_settings_arrive_in_the_worker(stack: Any) -> None:
    found = reported(stack)
    wanted = {name_of(given): value for given, value in GIVEN.items() if name_of(given) != "init_timeout"}
    wanted |= {"diffusion_attention_config": ["joint"]}
    assert {name: found.get(name) for name in wanted} == wanted
    types = {name: type(found[name]) for name in wanted if name in ("flow_shift", "request_batch_max_wait_ms")}
    assert types == dict.fromkeys(types, float)


def test_settings_have_their_effect(stack: Any) -> None:
    import ray

    found = reported(stack)
    assert found["vae"] == (True, True), "vLLM-Omni does not apply them to a pipeline that it does not make itself"
    params = {
        "height": 64,
        "width": 64,
        "num_inference_steps": 4,
        "guidance_scale": 1.0,
        "max_sequence_length": 16,
        "seed": 3,
        "logprobs": False,
    }
    for request in ("first", "again"):
        answer = stack.servers.server_handles[0].generate.remote(
            prompt_ids=[1, 2, 3], sampling_params=params, request_id=request
        )
        assert ray.get(answer, timeout=120).diffusion_output.shape == (3, 64, 64)
    assert reported(stack)["prompt_embed_cache"]["hits"] > found["prompt_embed_cache"]["hits"]
