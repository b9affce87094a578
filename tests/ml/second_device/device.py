"""Second device for tests: an NVIDIA GPU if `SECOND_DEVICE=cuda`, else the stand-in of `second_device.cpp`.

The stand-in is no accelerator. It is built once per version of torch and registered as `second`.
"""

import hashlib
import os
import tempfile
import types
from pathlib import Path

import torch

given_back: list[str] = []  # calls to the stand-in's module that release memory
SOURCE = Path(__file__).with_name("second_device.cpp")


def load() -> torch.device:
    """Build the stand-in if necessary, and register it with torch for the rest of this process."""
    if _cuda():
        return torch.device("cuda", 0)
    _load_library()
    torch.utils.rename_privateuse1_backend("second")
    module = types.ModuleType("second")
    module.empty_cache = lambda: given_back.append("cache")  # type: ignore[attr-defined]
    module.get_device_name = lambda device: f"{device.type} stand-in"  # type: ignore[attr-defined]
    module.ipc_collect = lambda: given_back.append("ipc")  # type: ignore[attr-defined]
    module.is_available = lambda: False  # type: ignore[attr-defined]  # without torch.accelerator
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    torch._register_device_module("second", module)
    # Keep parameter objects when they move to the device, as with CUDA, whose tensors torch treats as compatible with
    # CPU tensors.
    torch.__future__.set_swap_module_params_on_conversion(True)
    return torch.device("second", 0)


def _load_library() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni-operator"
    key = f"{torch.__version__}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    library = cache / f"second-device-{key}.so"
    if library.is_file():
        torch.ops.load_library(library)
        return
    from torch.utils import cpp_extension

    cache.mkdir(parents=True, exist_ok=True)
    # Built in a temporary folder: a build that is killed leaves a lock that the next build would wait for.
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        cpp_extension.load(
            "second_device",
            [str(SOURCE)],
            build_directory=folder,
            is_python_module=False,
            extra_cflags=["-O0", "-std=c++20"],
        )
        (Path(folder) / "second_device.so").replace(library)


def allocated() -> int:
    """Allocated bytes of the device."""
    if _cuda():
        return torch.cuda.memory_allocated()
    return torch.ops.second_device.allocated()


def _cuda() -> bool:
    return os.environ.get("SECOND_DEVICE") == "cuda"
