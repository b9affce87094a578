"""PURE: settings that are for accelerators: on a CPU their other values change nothing, each with the reason."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.settings_schema.engine_settings import GROUP as ENGINE
from verl_omni.workers.rollout.cpu_settings import NEEDED

ROLLOUT = "actor_rollout_ref.rollout"
FSDP = "actor_rollout_ref.actor.fsdp_config"
JUDGE = "reward.reward_model.rollout"
ONE_PROCESS = "an engine is one process"
_WHY = {
    "tensor_model_parallel_size": ONE_PROCESS,
    "data_parallel_size": ONE_PROCESS,
    "rollout_attn_backend": "attention is torch's",
    "enable_sleep_mode": "an engine that sleeps frees no memory",
}
# Name: the value that holds on a CPU, and why. Trainer, engine and judge cannot start with another one.
REPLACED: dict[str, tuple[Any, str]] = {
    "actor_rollout_ref.model.attn_backend": ("native", "attention is torch's"),
    **{f"{ROLLOUT}.{name}": (value, _WHY[name]) for name, value in NEEDED.items()},
    **{f"{JUDGE}.{name}_parallel_size": (1, ONE_PROCESS) for name in ("tensor_model", "data", "pipeline_model")},
}
# Name: the value that asks for nothing, and why the others do nothing.
IGNORED: dict[str, tuple[Any, str]] = {
    f"{ROLLOUT}.enforce_eager": (True, "the engine compiles nothing"),
    f"{ROLLOUT}.offload_text_encoders": (False, "text encoders are in host memory"),
    f"{ROLLOUT}.gpu_memory_utilization": (0.5, "the engine reserves no memory"),
    f"{ENGINE}.diffusion_kv_cache_dtype": (None, "attention is torch's"),
    f"{ENGINE}.enable_cpu_offload": (False, "weights are in host memory"),
    f"{ENGINE}.enable_layerwise_offload": (False, "weights are in host memory"),
    f"{ENGINE}.fa_deterministic": (False, "attention is torch's"),
    f"{ENGINE}.force_cutlass_fp8": (False, "there are no kernels of CUTLASS"),
    f"{FSDP}.param_offload": (False, "weights are in host memory"),
    f"{FSDP}.optimizer_offload": (False, "the optimizer state is in host memory"),
}


def fill_in(config: DictConfig) -> None:
    """Replace the values that trainer, engine and judge on a CPU cannot start with."""
    for name, (value, _) in REPLACED.items():
        OmegaConf.update(config, name, value)


def find(given: Mapping[str, Any]) -> dict[str, str]:
    """The reason for each setting of a run whose value changes nothing on a CPU.

    Args:
        given: values by the names of the overrides.
    """
    return {
        name: f"on a CPU {reason}"
        for name, (value, reason) in {**REPLACED, **IGNORED}.items()
        if given.get(name) not in (None, value)
    }
