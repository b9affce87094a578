"""PURE: checks of an update: names, values, an adapter's settings and tensors, its binding to the engine's layers.

vLLM-Omni finds an adapter that matches no layer only when it activates it (vllm_omni/diffusion/lora/manager.py,
`_bind_adapter_weights`), and accepts a matrix narrower than its layer (vllm/lora/layers: `set_lora` copies it into a
corner).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import BindingIncomplete, IncompleteUpdate, UnsupportedAdapter, summarize_names
from verl_omni.weight_sync.names import adapter_modules

# Settings of peft.LoraConfig that vLLM's PEFTHelper does not read, or reads and ignores.
UNSUPPORTED_SETTINGS = (
    "rank_pattern",
    "alpha_pattern",
    "use_dora",
    "use_qalora",
    "modules_to_save",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
)
# Initializations that also change the base weights: the adapter alone would give another model in the engine.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq")


class StagedTensors:
    """Tensors of an update, copied out of the transfer buffer, which the next bucket overwrites."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, bucket: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a bucket.

        Raises:
            IncompleteUpdate: a name arrived twice, or a value is not finite.
        """
        for name, tensor in bucket:
            if name in self.tensors:
                raise IncompleteUpdate(f"{name} arrived twice")
            check_finite(name, tensor)
            self.tensors[name] = tensor.clone()


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise `IncompleteUpdate` for a floating-point tensor with a NaN or an infinity."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # torch cannot compare 8-bit floats; 16 bits represent all of their values.
    wide = tensor.to(torch.bfloat16) if tensor.element_size() == 1 else tensor
    # `aminmax` returns NaN if any value is NaN. It needs one pass and no temporary tensor; `isfinite` of all values
    # takes 20 to 40 times as long on a CPU.
    if not all(math.isfinite(extreme.item()) for extreme in torch.aminmax(wide)):
        raise IncompleteUpdate(f"{name} has values that are not finite")


def check_names(expected: Iterable[str], found: Iterable[str]) -> None:
    """Raise `IncompleteUpdate` unless both are the same set of names."""
    wanted = set(expected)
    got = set(found)
    labelled = (("missing", wanted - got), ("unexpected", got - wanted))
    if problems := [f"{label}: {summarize_names(names)}" for label, names in labelled if names]:
        raise IncompleteUpdate("; ".join(problems))


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """The layer of the engine that a module of an adapter is bound to.

    Attributes:
        layer: the engine's LoRA layer.
        slices: indices of the layer's fused parts; (0,) for a layer that is not fused.
        rows: output features of each part, over all tensor-parallel ranks.
        columns: input features, over all ranks.
    """

    layer: Any
    slices: tuple[int, ...]
    rows: tuple[int, ...]
    columns: int


def check_settings(peft_config: Mapping[str, Any], *, base_synced: bool) -> int:
    """Check the adapter's settings. Returns its rank.

    Args:
        base_synced: whether the trainer has also sent its base weights.

    Raises:
        UnsupportedAdapter: the engine would ignore a setting and run another model.
    """
    lost = [name for name in UNSUPPORTED_SETTINGS if peft_config.get(name)]
    if peft_config.get("bias") not in (None, "none"):
        lost.append("bias")
    if lost:
        raise UnsupportedAdapter(f"the engine does not support these settings of the adapter: {summarize_names(lost)}")
    start = str(peft_config.get("init_lora_weights", "")).lower()
    if not base_synced and start.startswith(BASE_CHANGING_INITS):
        raise UnsupportedAdapter(
            f"init_lora_weights={start} changes the base weights, which were not sent to the engine"
        )
    rank = peft_config.get("r")
    if not isinstance(rank, int) or rank <= 0:
        raise UnsupportedAdapter(f"the adapter's rank is {rank!r}, not a positive number")
    return rank


def check_pairs(tensors: Mapping[str, Tensor], rank: int) -> set[str]:
    """Check an adapter's tensors, lora_A [rank, in] and lora_B [out, rank]. Returns the names of their modules.

    Raises:
        IncompleteUpdate: one of a pair is missing, a tensor is not a LoRA tensor, or it has another rank.
    """
    modules = adapter_modules(tensors)
    for module in sorted(modules):
        a = tensors[f"{module}.lora_A.weight"]
        b = tensors[f"{module}.lora_B.weight"]
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
            raise IncompleteUpdate(
                f"{module} has lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}, but the adapter's rank is {rank}"
            )
    return modules


def lora_targets(layers: Mapping[str, Any], fused_modules: Mapping[str, Sequence[str]]) -> dict[str, LoraTarget]:
    """The engine's LoRA layers by every name that an adapter may use for them.

    Args:
        layers: `<component>.<module path>` -> LoRA layer.
        fused_modules: fused module -> names of its parts.
    """
    full: dict[str, LoraTarget] = {}
    for full_name, layer in layers.items():
        base = layer.base_layer
        rows = tuple(base.output_sizes) if layer.n_slices > 1 else (base.output_size,)
        full[full_name] = LoraTarget(layer, tuple(range(layer.n_slices)), rows, base.input_size)
        parent, _, leaf = full_name.rpartition(".")
        parts = fused_modules.get(leaf, ())
        if layer.n_slices == len(parts) > 1:
            for index, part in enumerate(parts):
                full[f"{parent}.{part}"] = LoraTarget(layer, (index,), (rows[index],), base.input_size)
    # The engine also accepts names without the component; it binds a name that two components have to both.
    uses = Counter(name.partition(".")[2] for name in full)
    short = {name.partition(".")[2]: target for name, target in full.items()}
    return {name: target for name, target in short.items() if uses[name] == 1} | full


def check_loras(loras: Mapping[str, Any], known: Mapping[str, LoraTarget]) -> None:
    """Check an adapter that the engine has loaded, before it is activated.

    Args:
        loras: module -> `LoRALayerWeights`, in the engine's dtype.

    Raises:
        BindingIncomplete: the engine has no layer for a module, or its layer has another size.
        IncompleteUpdate: a value is not finite in the engine's dtype.
    """
    if missing := [name for name in loras if name not in known]:
        raise BindingIncomplete(
            f"{len(missing)} of {len(loras)} LoRA modules are not in the engine: {summarize_names(missing)}; train "
            "without them (actor_rollout_ref.model.exclude_modules, or others in target_modules)"
        )
    for name, weights in loras.items():
        for _, a, b, rows, columns in _parts(name, known[name], weights):
            if a.shape[1] != columns or b.shape[0] != rows or a.shape[0] != b.shape[1]:
                raise BindingIncomplete(
                    f"{name} has {columns} -> {rows} features in the engine, but the adapter has "
                    f"lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}"
                )
            check_finite(f"{name}.lora_A", a)
            check_finite(f"{name}.lora_B", b)


def check_binding(loras: Mapping[str, Any], known: Mapping[str, LoraTarget]) -> int:
    """Read every matrix back from the engine's layers. Returns the number of modules.

    Raises:
        BindingIncomplete: a layer does not hold the adapter's matrices.
    """
    unbound = [name for name, weights in loras.items() if not _holds(name, known[name], weights)]
    if unbound or not loras:
        raise BindingIncomplete(
            f"{len(unbound)} of {len(loras)} LoRA modules are not bound: {summarize_names(unbound)}"
        )
    return len(loras)


def _parts(name: str, target: LoraTarget, weights: Any) -> Iterator[tuple[int, Tensor, Tensor, int, int]]:
    """(slice, lora_A, lora_B, rows, columns) for each fused part; one lora_A may serve several."""
    if isinstance(weights.lora_b, list):
        pairs = list(zip(weights.lora_a, weights.lora_b, strict=True))
    elif weights.lora_b.shape[0] == sum(target.rows):
        pairs = [(weights.lora_a, b) for b in weights.lora_b.split(list(target.rows))]
    else:
        rows = weights.lora_b.shape[0]
        raise BindingIncomplete(f"lora_B of {name} has {rows} rows, but the engine's layer has {sum(target.rows)}")
    for index, (a, b), rows in zip(target.slices, pairs, target.rows, strict=True):
        if a is not None and b is not None:
            yield index, a, b, rows, target.columns


def _holds(name: str, target: LoraTarget, weights: Any) -> bool:
    for index, a, b, _, _ in _parts(name, target, weights):
        if target.layer.tp_size > 1:
            a, b = _own_shard(target.layer, index, a, b)
        for held, part in ((target.layer.lora_a_stacked, a), (target.layer.lora_b_stacked, b)):
            corner = held[index][0, 0, : part.shape[0], : part.shape[1]]
            if not torch.equal(corner, part.to(corner)):
                return False
    return True


def _own_shard(layer: Any, index: int, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The shard of a pair that this tensor-parallel rank holds."""
    if layer.n_slices == 1:
        return layer.slice_lora_a(a), layer.slice_lora_b(b)
    empty: list[Tensor | None] = [None] * layer.n_slices
    only_a = [*empty]
    only_b = [*empty]
    only_a[index] = a
    only_b[index] = b
    return layer.slice_lora_a(only_a)[index], layer.slice_lora_b(only_b)[index]
