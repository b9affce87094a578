"""Re-export: verl's clients are in its `workers.rollout.llm_server`, so programs look for ours at this path."""

from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import (
    DiffusionLLMServerClient,
    DiffusionWholeSampleRetryLLMServerClient,
)

__all__ = ["DiffusionLLMServerClient", "DiffusionWholeSampleRetryLLMServerClient"]
