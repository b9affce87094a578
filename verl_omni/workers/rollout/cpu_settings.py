"""PURE: rollout settings that the engine on a CPU needs instead of the defaults, which are for accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the trainer reads `NEEDED` when it checks settings
    from verl_omni.workers.config import DiffusionRolloutConfig

# One process computes, attention is torch's, and no memory is freed in sleep.
NEEDED: Mapping[str, Any] = {
    "tensor_model_parallel_size": 1,
    "data_parallel_size": 1,
    "rollout_attn_backend": "TORCH_SDPA",
    "enable_sleep_mode": False,
}
EXECUTOR = "uni"
ENGINE = "vllm_omni"


def changes(rollout: DiffusionRolloutConfig) -> dict[str, Any]:
    """The settings of a rollout on a CPU that must differ from those given, by name.

    Besides `NEEDED`: the engine's worker is a thread of the server unless `distributed_executor_backend` is given.
    """
    engine: Mapping[str, Any] = (rollout.engine_kwargs or {}).get(ENGINE) or {}
    needed = dict(NEEDED)
    if engine.get("distributed_executor_backend") is None:
        kwargs = {**(rollout.engine_kwargs or {}), ENGINE: {**engine, "distributed_executor_backend": EXECUTOR}}
        needed["engine_kwargs"] = kwargs
    return {name: value for name, value in needed.items() if getattr(rollout, name) != value}


def messages(rollout: DiffusionRolloutConfig) -> list[str]:
    """A line for each of `changes`."""
    return [
        f"rollout.{name} is {value} on a CPU, not {getattr(rollout, name)}" for name, value in changes(rollout).items()
    ]


def fit(rollout: DiffusionRolloutConfig) -> DiffusionRolloutConfig:
    """The same settings with `changes`."""
    return replace(rollout, **changed) if (changed := changes(rollout)) else rollout
