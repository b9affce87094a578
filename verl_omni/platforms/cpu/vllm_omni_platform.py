"""vLLM-Omni's CPU platform."""

import resource
from typing import Any

import torch
from typing_extensions import override
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

from verl_omni.compat import sdpa_forward
from verl_omni.platforms.cpu.memory import available_memory
from verl_omni.platforms.cpu.vllm_platform import OutOfTreeCpuPlatform


class OmniCpuPlatform(OmniPlatform, OutOfTreeCpuPlatform):
    """Uses torch's scaled-dot-product attention and no inductor; there is no device memory."""

    _omni_enum = OmniPlatformEnum.OOT

    @classmethod
    @override
    def get_diffusion_attn_backend_cls(
        cls, selected_backend: str | None, head_size: int, allow_trtllm_default: bool = False
    ) -> str:
        sdpa_forward.apply()
        return "vllm_omni.diffusion.attention.backends.sdpa.SDPABackend"

    @classmethod
    @override
    def get_diffusion_worker_cls(cls) -> str:
        return "verl_omni.platforms.cpu.diffusion_worker.CpuDiffusionWorker"

    @classmethod
    @override
    def get_omni_ar_worker_cls(cls) -> str:
        return "verl_omni.platforms.cpu.language_model_worker.CpuLanguageModelWorker"

    @classmethod
    @override
    def supports_torch_inductor(cls) -> bool:
        return False

    @classmethod
    @override
    def get_default_stage_config_path(cls) -> str:
        return "vllm_omni/deploy"

    @classmethod
    @override
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    @classmethod
    @override
    def get_device_count(cls) -> int:
        return 1

    @classmethod
    @override
    def get_device_version(cls) -> str | None:
        return None

    @classmethod
    @override
    def synchronize(cls) -> None:
        """Do nothing: CPU operations are synchronous."""

    @classmethod
    @override
    def empty_cache(cls) -> None:
        """There is no device cache."""

    @classmethod
    @override
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        return available_memory()[0]

    @classmethod
    @override
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        return available_memory()

    @classmethod
    def max_memory_allocated(cls, device: Any = None) -> int:
        """Peak resident memory of this process, bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    @classmethod
    def max_memory_reserved(cls, device: Any = None) -> int:
        """Same as `max_memory_allocated`: torch reserves no CPU memory."""
        return cls.max_memory_allocated(device)

    @classmethod
    def reset_peak_memory_stats(cls, device: Any = None) -> None:
        """Do nothing: the operating system's peak cannot be reset."""
