"""`rollout.external_lib` of a test: the engine's worker says which settings it has."""

from typing import Any

from verl_omni.workers.rollout.vllm_rollout.engine_worker.worker_extension import vLLMOmniColocateWorkerExtension


def report_settings(worker: Any) -> dict[str, Any]:
    """What the worker's pipeline and its cache of prompts have of the engine's settings."""
    vae = worker.model_runner.pipeline.vae
    return {
        "vae": (vae.use_slicing, vae.use_tiling),
        "prompt_embed_cache": worker.model_runner.prompt_embed_cache.stats(),
    }


vLLMOmniColocateWorkerExtension.report_settings = report_settings  # type: ignore[attr-defined]
