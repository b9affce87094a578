"""Patch: diffusers does not empty an Ascend NPU's cache while a model is loaded into a memory pool.

Fault: diffusers empties the device's cache while it loads weights (diffusers/models/modeling_utils.py), which
vllm-ascend's allocator does not allow inside one of its pools. Not reproduced here, because that needs an NPU.
Remove when: on an Ascend NPU, a model loads inside `CaMemAllocator.use_memory_pool` without this.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl_omni.compat.versions import require

TESTED = frozenset({"0.40.0"})
NAME = "empty_device_cache"


@contextmanager
def apply() -> Iterator[None]:
    """Within this context, diffusers does not empty the cache of an NPU."""
    require("diffusers", TESTED, "npu_empty_cache")
    from diffusers.utils import torch_utils

    upstream = torch_utils.empty_device_cache

    def patched(device_type: str | None = None) -> None:
        if (device_type or torch_utils.get_device()) != "npu":
            upstream(device_type)

    _replace(upstream, patched)
    try:
        yield
    finally:
        _replace(patched, upstream)


def _replace(old: Callable[..., None], new: Callable[..., None]) -> None:
    """Replace the function in every module of diffusers that has imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("diffusers.") and vars(module).get(NAME) is old:
            setattr(module, NAME, new)
