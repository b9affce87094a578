"""verl's view of a host CPU; chosen by `VERL_PLATFORM=cpu` (entry point group `verl.plugins`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _HostDevice:
    """`torch.cpu` and the few names of `torch.cuda` that verl calls on a device module."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    empty_cache = ipc_collect = set_device = manual_seed = manual_seed_all = reset_peak_memory_stats = _nothing

    def _zero(self, *args: Any) -> int:
        return 0

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = current_device = _zero

    def mem_get_info(self, *args: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """Logical devices on a host: Ray's `GPU` resource is what `ray.init(num_gpus=…)` says it is."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _HostDevice()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one host."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs beside the host."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """torch's host allocator has none."""

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
        """What Ray counts: pods with stand-ins for devices are offered under the name that real ones would have."""
        return os.environ.get("VERL_OMNI_RAY_RESOURCE", "GPU")

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # device IPC; weights then travel through shared memory

    def cudart(self) -> None:
        return None
