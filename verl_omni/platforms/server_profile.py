"""Platform-specific settings of a rollout server's process."""

import sys
from dataclasses import dataclass
from typing import Any

from verl_omni.compat import engine_polling

UNI_EXECUTOR = "uni"  # runs the engine's worker as a thread of the server's process


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """Settings of a server's process on one platform; the defaults change nothing.

    Attributes:
        uni_switch_seconds: interpreter switch interval of a server that runs its worker as a thread; it polls less too.
        language_model_scheduler: qualified name of the scheduler of a language model; None for the engine's choice.
        attention_by_engine: attention backends in place of which the engine chooses the best that is installed.
    """

    uni_switch_seconds: float | None = None
    language_model_scheduler: str | None = None
    attention_by_engine: frozenset[str] = frozenset()

    def attention_config(self, backend: str) -> dict[str, Any] | None:
        """The engine's `diffusion_attention_config` for a backend; None leaves the choice to the engine."""
        return None if backend.upper() in self.attention_by_engine else {"default": {"backend": backend}}

    def tune_process(self, *, executor: str | None) -> None:
        """Set this process up for an engine with this `distributed_executor_backend`."""
        if executor == UNI_EXECUTOR and self.uni_switch_seconds is not None:
            sys.setswitchinterval(self.uni_switch_seconds)
            engine_polling.apply()


CPU_PROFILE = ServerProfile(
    # Model and requests share one interpreter lock. With Python's default of 5 ms, requests wait for it many times
    # over while a batch is generated, and the next batch starts with two requests instead of all.
    uni_switch_seconds=0.0005,
    # The default scheduler expects an engine that prepares a step while the previous one runs; vLLM's CPU runner
    # does not.
    language_model_scheduler="vllm_omni.core.sched.omni_ar_scheduler.OmniARScheduler",
)

NPU_PROFILE = ServerProfile(
    # On CUDA the engine takes torch's attention where the package of flash attention is missing. On an NPU it does not,
    # and the first request fails to import MindIE-SD (vllm_omni/platforms/npu/platform.py,
    # diffusion/attention/backends/flash_attn.py). Without a name it takes flash attention if that is installed.
    attention_by_engine=frozenset({"FLASH_ATTN", "FLASH_ATTN_HUB", "FLASH_ATTN_3_HUB"}),
)


def server_profile() -> ServerProfile:
    """Profile of the platform that vLLM-Omni runs on."""
    from vllm_omni.platforms import current_omni_platform

    return {"cpu": CPU_PROFILE, "npu": NPU_PROFILE}.get(current_omni_platform.device_type, ServerProfile())
