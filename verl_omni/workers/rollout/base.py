"""Re-export: programs written for verl-omni import the registration of the weight sender from this path."""

from __future__ import annotations

from verl_omni.workers.rollout.replica import SERVER_ADAPTER, register_vllm_omni

__all__ = ["SERVER_ADAPTER", "register_vllm_omni"]
