"""Platform-specific settings of a rollout server's process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

UNI_EXECUTOR = "uni"  # runs the engine's worker as a thread of the server's process


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """Settings of a server's process on one platform; the defaults change nothing.

    Attributes:
        uni_switch_seconds: interpreter switch interval of a server that runs its worker as a thread.
        language_model_scheduler: qualified name of the scheduler of a language model; None for the engine's choice.
    """

    uni_switch_seconds: float | None = None
    language_model_scheduler: str | None = None

    def tune_process(self, *, executor: str | None) -> None:
        """Set this process up for an engine with this `distributed_executor_backend`."""
        if executor == UNI_EXECUTOR and self.uni_switch_seconds is not None:
            sys.setswitchinterval(self.uni_switch_seconds)


CPU_PROFILE = ServerProfile(
    # Model and requests share one interpreter lock. With Python's default of 5 ms, requests wait for it many times
    # over while a batch is generated, and the next batch starts with two requests instead of all.
    uni_switch_seconds=0.0005,
    # The default scheduler expects an engine that prepares a step while the previous one runs; vLLM's CPU runner
    # does not.
    language_model_scheduler="vllm_omni.core.sched.omni_ar_scheduler.OmniARScheduler",
)


def server_profile() -> ServerProfile:
    """Profile of the platform that vLLM-Omni runs on."""
    from vllm_omni.platforms import current_omni_platform

    return CPU_PROFILE if current_omni_platform.device_type == "cpu" else ServerProfile()
