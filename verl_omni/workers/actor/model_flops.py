"""`ModelFlops`: FLOPs of the passes of a transformer through its layers, counted on tensors without memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from verl_omni.workers.actor import build, shard_loading
from verl_omni.workers.actor.experts import HIGH_NOISE
from verl_omni.workers.actor.precision import Precision

FLOAT32 = Precision(frozen=torch.float32, compute=torch.float32)


@dataclass(frozen=True, slots=True)
class _Size:
    """Stands for a tensor in the inputs of a pass; `floating` ones become float32."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class ModelFlops:
    """Notes the passes of modules, and counts the floating-point operations that they need.

    An operation of matrix multiplication, attention or convolution counts as in `torch.utils.flop_counter`, a
    multiplication and an addition as two. A pass with gradients counts with its backward pass. What activation
    checkpointing computes again does not count.

    Args:
        model: `DiffusionModelConfig` of the transformer.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._made: nn.Module | None = None
        self._counts: dict[Any, int] = {}
        self._passes: Counter[Any] = Counter()

    def watch(self, module: nn.Module) -> None:
        """Note every pass of the transformer, or of another one of the same shape."""
        module.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
        leaves, structure = tree_flatten((tuple(positional), dict(named)))
        sizes = tuple(_Size(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in leaves)
        self._passes[sizes, structure, torch.is_grad_enabled()] += 1

    @cached_property
    def _can_be_made(self) -> bool:
        return shard_loading.can_be_made(_folder(self._model))

    def take(self) -> int | None:
        """FLOPs of the passes since the last call; None if the model cannot be made without its weights.

        The first time that a shape appears, a pass of this shape runs without memory.
        """
        passes = self._passes
        self._passes = Counter()
        if not self._can_be_made:
            return None
        for key in sorted(passes, key=lambda key: not key[-1]):  # those with gradients count both
            if key not in self._counts:
                self._count(*key)
        return sum(self._counts[key] * number for key, number in passes.items())

    def _count(self, sizes: Sequence[Any], structure: Any, gradients: bool) -> None:
        if self._made is None:
            self._made = _without_memory(self._model)
        positional, named = tree_unflatten([_on_meta(size) for size in sizes], structure)
        with _Operations() as counted, torch.set_grad_enabled(gradients):
            output = self._made(*positional, **named)[0]
            self._counts[sizes, structure, False] = counted.flops
            if gradients:
                output.sum().backward()
                self._counts[sizes, structure, True] = counted.flops
        self._made.zero_grad()


class _Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts FLOPs like torch's `FlopCounterMode`, which also sorts them by module and takes twice as long."""

    flops = 0

    @override
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _without_memory(model: Any) -> nn.Module:
    """The trained transformer in float32 on the meta device, without activation checkpointing."""
    plain = {"enable_gradient_checkpointing": False, "attn_backend": "native", "lora_init_weights": True}
    with (
        torch.random.fork_rng(devices=[]),
        torch.device("meta"),
    ):  # its buffers, too: SD3 would compute gigabytes of them
        module = shard_loading.without_memory(_folder(model), torch.float32)
        return build.prepare(module.eval(), SimpleNamespace(**{**vars(model), **plain}), precision=FLOAT32, seed=0)


def _folder(model: Any) -> Path:
    """The transformer's folder; for a model with two, which have the same shape, the first one's."""
    return Path(model.path) / HIGH_NOISE


def _on_meta(size: Any) -> Any:
    if not isinstance(size, _Size):
        return size
    return torch.empty(size.shape, dtype=torch.float32 if size.dtype.is_floating_point else size.dtype, device="meta")
