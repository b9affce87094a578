"""`rollout.external_lib` of a test: the engine's worker says which settings it has."""

from __future__ import annotations

from typing import Any

from verl_omni.workers.rollout.vllm_rollout.engine_worker.worker_extension import vLLMOmniColocateWorkerExtension


def report_settings(worker: Any) -> dict[str, Any]:
    """What the worker and its pipeline have of the engine's settings."""
    config = worker.od_config
    pipeline = worker.model_runner.pipeline
    attention = config.diffusion_attention_config
    cache = getattr(worker.model_runner, "prompt_embed_cache", None)
    plain = {name: value for name, value in vars(config).items() if isinstance(value, bool | int | float | str)}
    return {
        **plain,
        "diffusion_attention_backend": attention.default.backend,
        "diffusion_attention_config": sorted(attention.per_role),
        "vae_parallel_mode": config.parallel_config.vae_parallel_mode,
        "vae_patch_parallel_size": config.parallel_config.vae_patch_parallel_size,
        "vae": (pipeline.vae.use_slicing, pipeline.vae.use_tiling),
        "prompt_embed_cache": cache.stats() if cache is not None else None,
    }


vLLMOmniColocateWorkerExtension.report_settings = report_settings  # type: ignore[attr-defined]
