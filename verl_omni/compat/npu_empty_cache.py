"""Patch: diffusers leaves the cache of an Ascend device alone while a model is loaded into a memory pool.

Fault: diffusers frees the device's cache while it loads weights (diffusers/models/modeling_utils.py), which
vllm-ascend's allocator does not allow inside one of its pools. Not reproduced here: that needs such a device.
Remove when: on an Ascend device a model loads inside `CaMemAllocator.use_memory_pool` without this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl_omni.compat.versions import require

TESTED = frozenset({"0.40.0"})
NAME = "empty_device_cache"


@contextmanager
def apply() -> Iterator[None]:
    """As long as this context lasts, diffusers frees the cache of any other device only."""
    require("diffusers", TESTED, "npu_empty_cache")
    from diffusers.utils import torch_utils

    plain = torch_utils.empty_device_cache

    def kept(device_type: str | None = None) -> None:
        if (device_type or torch_utils.get_device()) != "npu":
            plain(device_type)

    _replace(plain, kept)
    try:
        yield
    finally:
        _replace(kept, plain)


def _replace(old: Callable[..., None], new: Callable[..., None]) -> None:
    """Wherever diffusers has taken the function by name; modules imported meanwhile took the replacement."""
    for name, module in list(sys.modules.items()):
        if name.startswith("diffusers.") and vars(module).get(NAME) is old:
            setattr(module, NAME, new)
