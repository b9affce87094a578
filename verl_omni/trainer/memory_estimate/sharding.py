"""PURE: bytes of a model's parameters, whole and sharded with FSDP2, in the dtypes in which they are kept and used."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from verl_omni.workers.actor.parallel import layer_names
from verl_omni.workers.actor.precision import Precision, float32_parts

FLOAT32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the trained model is stored.

    Attributes:
        ranks: all ranks. shards: ranks that share one copy of the weights. sequence: ranks that share the sequence of
            each sample; samples are divided over the groups of them.
        precision: dtypes. wrapped: whether FSDP2 gathers each layer before it runs, which it also does in one process
            when layers need weights in another dtype.
    """

    ranks: int
    shards: int
    sequence: int
    precision: Precision

    @property
    def groups(self) -> int:
        """Groups of ranks that take samples of their own."""
        return self.ranks // self.sequence

    @property
    def wrapped(self) -> bool:
        """Whether the actor uses FSDP2: with several ranks, and for mixed precision."""
        return self.ranks > 1 or self.precision.mixed


def shard_bytes(parameters: Iterable[Tensor], shards: int) -> int:
    """Bytes of one rank's shards: FSDP2 splits the first dimension, rounded up."""
    return sum(
        math.ceil(p.shape[0] / shards) * (p.nbytes // p.shape[0]) if p.ndim and p.shape[0] else p.nbytes
        for p in parameters
    )


def weight_bytes(module: nn.Module, sharding: Sharding) -> int:
    """Bytes of one rank's parameters: its shards, and whole what FSDP2 leaves out (`parallel.parallelize`).

    That is what is frozen and stays in float32 next to layers that compute in another dtype.
    """
    kept = set(float32_parts(module)) if sharding.wrapped and sharding.precision.compute != torch.float32 else set()
    unsharded = {name for name, p in module.named_parameters() if name in kept and not p.requires_grad}
    parameters = dict(module.named_parameters())
    shards = shard_bytes([p for name, p in parameters.items() if name not in unsharded], sharding.shards)
    return shards + sum(parameters[name].nbytes for name in unsharded)


def gathered_bytes(module: nn.Module, prefixes: Sequence[str], precision: Precision, *, reshards: bool = True) -> int:
    """Unsharded bytes at one time: what belongs to no layer, the layer at work, and the next one.

    Each trained parameter also counts its gradient and the copy of the gradient that is reduced.

    Args:
        reshards: whether a layer's weights are freed between its forward and its backward pass; if not, the weights of
            all layers are allocated when the backward pass begins.
    """
    kept = set(float32_parts(module))
    weights = dict.fromkeys(layer_names(module, prefixes), 0)
    gradients = dict(weights)
    outside_layers = 0
    for name, parameter in module.named_parameters():
        size = parameter.numel() * (FLOAT32 if name in kept else precision.compute.itemsize)
        gradient = 0
        if parameter.requires_grad:
            gradient = size + parameter.numel() * precision.reduce.itemsize
        elif name in kept and precision.compute != torch.float32:
            continue  # every rank keeps it whole
        layer = next((layer for layer in weights if name.startswith(f"{layer}.")), None)
        if layer is None:
            outside_layers += size + gradient
        else:
            weights[layer] += size
            gradients[layer] += gradient
    if not reshards:
        return outside_layers + sum(weights.values()) + 2 * max(gradients.values(), default=0)
    return outside_layers + 2 * max((size + gradients[layer] for layer, size in weights.items()), default=0)


def gradient_bytes(trained: Sequence[Tensor], sharding: Sharding, *, accumulates_unsharded: bool) -> int:
    """Bytes of the gradients while they are accumulated.

    Args:
        accumulates_unsharded: whether they are reduced only once in an optimizer step of several passes, so that each
            rank keeps all of them, in `precision.reduce`, until then.
    """
    if sharding.wrapped and accumulates_unsharded:
        return sum(p.numel() for p in trained) * sharding.precision.reduce.itemsize
    return shard_bytes(trained, sharding.shards)


def as_computed(module: nn.Module, precision: Precision) -> nn.Module:
    """Give the parameters the dtypes in which layers see them, as FSDP2 does for each layer while it runs."""
    kept = set(float32_parts(module))
    for name, parameter in module.named_parameters():
        if name not in kept and parameter.is_floating_point():
            owner, _, attribute = name.rpartition(".")
            cast = nn.Parameter(parameter.to(precision.compute), requires_grad=parameter.requires_grad)
            module.get_submodule(owner)._parameters[attribute] = cast
    return module
