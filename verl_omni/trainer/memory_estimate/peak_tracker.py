"""`PeakTracker`: bytes of live tensors during a computation, for fake tensors as for real ones."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from verl_omni.trainer.memory_estimate.caching_allocator import CachingAllocator


class PeakTracker(TorchDispatchMode):  # type: ignore[misc]
    """Counts the storages of all tensors that operators return while it is active.

    A storage counts once, however many views it has, and until nothing refers to it. What an operator allocates and
    frees inside, such as the workspace of an attention kernel, is not counted. torch's own tracker
    (`torch.distributed._tools.mem_tracker`) cannot be used: it refuses parameters without gradients.

    Args:
        allocator: gives memory to what operators return, as on an accelerator, and counts what it holds. A convolution
            then has a workspace too: kernels of tensor cores take channels last, so cuDNN copies input, weight and
            output (NVIDIA, Convolutional Layers User's Guide, "Tensor Layouts In Memory").

    Attributes:
        live, peak: bytes now, and their maximum since the start.
    """

    def __init__(self, allocator: CachingAllocator | None = None) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._allocator = allocator
        self._known: weakref.WeakKeyDictionary[torch.UntypedStorage, None] = weakref.WeakKeyDictionary()

    def add(self, tensors: Iterable[Tensor]) -> int:
        """Count tensors that existed before. Returns the bytes of those that were not counted yet."""
        before = self.live
        for tensor in tensors:
            self._note(tensor, None)
        return self.live - before

    def _note(self, tensor: Tensor, allocator: CachingAllocator | None) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = None
        weakref.finalize(storage, self._free, size)
        if allocator is not None and size:
            weakref.finalize(storage, allocator.release, allocator.allocate(size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _free(self, size: int) -> None:
        self.live -= size

    def _add_workspace(self, allocator: CachingAllocator, tensors: Iterable[Tensor]) -> None:
        size = sum(tensor.nbytes for tensor in tensors)
        self.peak = max(self.peak, self.live + size)
        allocator.release(allocator.allocate(size))

    @override
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf, self._allocator)
        if self._allocator is not None and func is torch.ops.aten.convolution.default:
            self._add_workspace(self._allocator, (args[0], args[1], result))
        return result
