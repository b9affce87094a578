"""PURE: names of updates, sockets and tensors in a weight update."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate, summarize_names

BASE_LAYER = "base_layer"  # name of a layer inside the LoRA wrapper of peft and vLLM


def make_update_zmq_id(step: int | None, sequence: int) -> str:
    """Name of one update, so that a late receiver of an earlier update cannot take its buckets."""
    return f"step-{'none' if step is None else step}-seq-{sequence}"


def make_update_zmq_handle(handle: str, update_id: str | None) -> str:
    """`ipc://…-update-<id>.sock` for an `ipc://….sock` handle; other handles are unchanged."""
    if update_id is None or not handle.startswith("ipc://"):
        return handle
    stem = handle.removesuffix(".sock")
    return f"{stem}-update-{update_id}.sock"


def socket_path(handle: str) -> str:
    """Path of the socket file of an `ipc://` handle.

    Raises:
        ValueError: another kind of handle.
    """
    if not handle.startswith("ipc://"):
        raise ValueError(f"unsupported handle {handle}: weights are sent within one machine, by ipc://")
    return handle.removeprefix("ipc://")


def adapter_modules(names: Iterable[str]) -> set[str]:
    """Modules that the LoRA tensors `<module>.lora_A.weight` and `<module>.lora_B.weight` belong to.

    Raises:
        IncompleteUpdate: a name is not a LoRA tensor's, one of a pair is missing, or there are no tensors.
    """
    halves: dict[str, set[str]] = {}
    for name in names:
        for half in ("lora_A", "lora_B"):
            if name.endswith(f".{half}.weight"):
                halves.setdefault(name.removesuffix(f".{half}.weight"), set()).add(half)
                break
        else:
            raise IncompleteUpdate(f"{name} is not a LoRA tensor")
    if not halves:
        raise IncompleteUpdate("the adapter has no tensors")
    if single := [module for module, sides in halves.items() if len(sides) == 1]:
        raise IncompleteUpdate(f"lora_A or lora_B is missing for {summarize_names(single)}")
    return set(halves)


def strip_lora_wrapper(name: str) -> str:
    """`a.to_q.base_layer.weight` -> `a.to_q.weight`: the name of the weight without an adapter."""
    return ".".join(part for part in name.split(".") if part != BASE_LAYER)


def add_lora_wrapper(name: str) -> str:
    """`a.to_q.weight` -> `a.to_q.base_layer.weight`."""
    module, _, leaf = name.rpartition(".")
    return f"{module}.{BASE_LAYER}.{leaf}"


def replace_parts(name: str, table: Sequence[tuple[str, str]]) -> str:
    """Replace every left side of `table`, such as `.to_out.`, in a dotted name by its right side."""
    dotted = f".{name}."
    for old, new in table:
        dotted = dotted.replace(old, new)
    return dotted[1:-1]


def to_engine_adapter(
    tensors: Mapping[str, Tensor], peft_config: Mapping[str, Any], checkpoint_names: Sequence[tuple[str, str]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Rename an adapter's tensors to the engine's names; the engine adapts their modules, whatever the settings list.

    Args:
        checkpoint_names: pairs (part of the engine's names, the same part in checkpoints).
    """
    table = [(theirs, ours) for ours, theirs in checkpoint_names]
    return {replace_parts(name, table): tensor for name, tensor in tensors.items()}, dict(peft_config)


def part_names(name: str, fused_modules: dict[str, list[str]]) -> list[str]:
    """Names under which the parts of a fused weight are sent; the name itself for any other weight.

    Args:
        fused_modules: `{"to_qkv": ["to_q", "to_k", "to_v"]}`, fused module -> its parts; either may be a dotted path.
    """
    dotted = f".{name}."
    for fused, parts in fused_modules.items():
        if f".{fused}." in dotted:
            return [dotted.replace(f".{fused}.", f".{part}.")[1:-1] for part in parts]
    return [name]
