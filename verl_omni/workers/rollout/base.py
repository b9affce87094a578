"""The reference registers its weight sender here, where programs import it; importing `replica` registers ours."""

from __future__ import annotations

from verl_omni.workers.rollout.replica import SERVER_ADAPTER, register_vllm_omni

__all__ = ["SERVER_ADAPTER", "register_vllm_omni"]
