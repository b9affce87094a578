"""verl's CPU platform, selected by `VERL_PLATFORM=cpu` (entry point group `verl.plugins`)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_omni.platforms.cpu.memory import available_memory


class _CpuDeviceModule:
    """`torch.cpu` with the functions of `torch.cuda` that verl calls on a device module."""

    def _do_nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    empty_cache = ipc_collect = set_device = manual_seed = manual_seed_all = reset_peak_memory_stats = _do_nothing

    def _zero(self, *args: Any) -> int:
        return 0

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = current_device = _zero

    def mem_get_info(self, *args: Any) -> tuple[int, int]:
        return available_memory()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """CPU platform. Ray counts logical GPUs, as set by `ray.init(num_gpus=…)`."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _CpuDeviceModule()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one CPU device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: CPU operations are synchronous."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """torch's CPU allocator has no settings."""

    def empty_cache(self) -> None:
        """There is no device cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """The resource that Ray counts; pods with fake GPUs use the resource name of real ones."""
        return os.environ.get("VERL_OMNI_RAY_RESOURCE", "GPU")

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # no device IPC: weights are sent through shared memory

    def cudart(self) -> None:
        return None
