"""PURE: whether an adapter is one that the engine can attach whole, and whether it did.

vLLM-Omni 0.28 takes an adapter that attaches nowhere, and a matrix narrower than its layer, without a word
(vllm_omni/diffusion/lora/manager.py, `_bind_adapter_weights`; vllm/lora/layers, `set_lora` copies into a corner).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import BindingIncomplete, IncompleteUpdate, UnsupportedAdapter
from verl_omni.weight_sync.names import adapter_modules
from verl_omni.weight_sync.staging import check_finite, few

# Settings of peft.LoraConfig that vLLM's PEFTHelper does not read, or reads and does not honour.
DROPPED = (
    "rank_pattern", "alpha_pattern", "use_dora", "use_qalora", "modules_to_save", "lora_bias", "layer_replication",
    "target_parameters", "trainable_token_indices", "alora_invocation_tokens",
)  # fmt: skip
# Ways to begin that also change the base weights: an adapter alone then means something else in the engine.
MOVES_BASE = ("pissa", "olora", "corda", "loftq")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module of an adapter belongs.

    Attributes:
        layer: the engine's LoRA layer.
        slices: which of the layer's fused parts; (0,) where it has one part.
        rows: output features of each of them, over all tensor-parallel ranks.
        columns: input features, over all ranks.
    """

    layer: Any
    slices: tuple[int, ...]
    rows: tuple[int, ...]
    columns: int


def check_settings(peft_config: Mapping[str, Any], *, base_synced: bool) -> int:
    """The adapter's rank.

    Args:
        base_synced: whether the trainer has sent its base weights too.

    Raises:
        UnsupportedAdapter: a setting would be lost in the engine, so that it would run another model.
    """
    lost = [name for name in DROPPED if peft_config.get(name)]
    if peft_config.get("bias") not in (None, "none"):
        lost.append("bias")
    if lost:
        raise UnsupportedAdapter(f"the engine would leave out these settings of the adapter: {few(lost)}")
    start = str(peft_config.get("init_lora_weights", "")).lower()
    if not base_synced and start.startswith(MOVES_BASE):
        raise UnsupportedAdapter(f"init_lora_weights={start} changes the base weights, which the engine never got")
    rank = peft_config.get("r")
    if not isinstance(rank, int) or rank <= 0:
        raise UnsupportedAdapter(f"the adapter's rank is {rank!r}")
    return rank


def check_pairs(tensors: Mapping[str, Tensor], rank: int) -> set[str]:
    """The modules of an adapter's tensors, lora_A [rank, in] and lora_B [out, rank].

    Raises:
        IncompleteUpdate: a tensor is alone, is none of an adapter, or has another rank.
    """
    modules = adapter_modules(tensors)
    for module in sorted(modules):
        a, b = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
            raise IncompleteUpdate(
                f"{module} has lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)} where the rank is {rank}"
            )
    return modules


def places(layers: Mapping[str, Any], packed: Mapping[str, Sequence[str]]) -> dict[str, Place]:
    """Every name under which an adapter may address one of the engine's LoRA layers.

    Args:
        layers: `<component>.<module path>` -> LoRA layer.
        packed: fused module -> names of its parts.
    """
    found: dict[str, Place] = {}
    for full_name, layer in layers.items():
        base = layer.base_layer
        rows = tuple(base.output_sizes) if layer.n_slices > 1 else (base.output_size,)
        whole = Place(layer, tuple(range(layer.n_slices)), rows, base.input_size)
        parent, _, leaf = full_name.rpartition(".")
        named = {full_name: whole}
        parts = packed.get(leaf, ())
        if layer.n_slices == len(parts) > 1:
            for index, part in enumerate(parts):
                named[f"{parent}.{part}"] = Place(layer, (index,), (rows[index],), base.input_size)
        for name, place in named.items():
            found[name] = place
            found.setdefault(name.partition(".")[2], place)  # the engine also looks without the component
    return found


def check_places(loras: Mapping[str, Any], known: Mapping[str, Place]) -> None:
    """Check an adapter as the engine has built it, before it is attached.

    Args:
        loras: module -> `LoRALayerWeights`, in the engine's dtype.

    Raises:
        BindingIncomplete: the engine has no layer for a module, or one of another size.
        IncompleteUpdate: a value is not finite in the engine's dtype.
    """
    if homeless := [name for name in loras if name not in known]:
        raise BindingIncomplete(f"{len(homeless)} of {len(loras)} LoRA modules are not in the engine: {few(homeless)}")
    for name, weights in loras.items():
        for _, a, b, rows, columns in _parts(name, known[name], weights):
            if a.shape[1] != columns or b.shape[0] != rows or a.shape[0] != b.shape[1]:
                raise BindingIncomplete(
                    f"{name} is a layer of {columns} -> {rows} features in the engine, and got "
                    f"lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}"
                )
            check_finite(f"{name}.lora_A", a)
            check_finite(f"{name}.lora_B", b)


def check_attached(loras: Mapping[str, Any], known: Mapping[str, Place]) -> int:
    """Read every matrix back from the engine's layers. Returns the number of modules.

    Raises:
        BindingIncomplete: a layer does not hold what it was given.
    """
    loose = [name for name, weights in loras.items() if not _holds(name, known[name], weights)]
    if loose or not loras:
        raise BindingIncomplete(f"{len(loose)} of {len(loras)} LoRA modules are not attached: {few(loose)}")
    return len(loras)


def _parts(name: str, place: Place, weights: Any) -> Iterator[tuple[int, Tensor, Tensor, int, int]]:
    """(slice, lora_A, lora_B, rows, columns) for each fused part; one lora_A may serve several."""
    if isinstance(weights.lora_b, list):
        pairs = list(zip(weights.lora_a, weights.lora_b, strict=True))
    elif weights.lora_b.shape[0] == sum(place.rows):
        pairs = [(weights.lora_a, b) for b in weights.lora_b.split(list(place.rows))]
    else:
        rows = weights.lora_b.shape[0]
        raise BindingIncomplete(f"lora_B of {name} has {rows} rows, the engine's layer {sum(place.rows)}")
    for index, (a, b), rows in zip(place.slices, pairs, place.rows, strict=True):
        if a is not None and b is not None:
            yield index, a, b, rows, place.columns


def _holds(name: str, place: Place, weights: Any) -> bool:
    for index, a, b, _, _ in _parts(name, place, weights):
        if place.layer.tp_size > 1:
            a, b = _own_share(place.layer, index, a, b)
        for held, given in ((place.layer.lora_a_stacked, a), (place.layer.lora_b_stacked, b)):
            corner = held[index][0, 0, : given.shape[0], : given.shape[1]]
            if not torch.equal(corner, given.to(corner)):
                return False
    return True


def _own_share(layer: Any, index: int, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """What this tensor-parallel rank keeps of a pair."""
    if layer.n_slices == 1:
        return layer.slice_lora_a(a), layer.slice_lora_b(b)
    empty: list[Tensor | None] = [None] * layer.n_slices
    only_a, only_b = [*empty], [*empty]
    only_a[index], only_b[index] = a, b
    return layer.slice_lora_a(only_a)[index], layer.slice_lora_b(only_b)[index]
