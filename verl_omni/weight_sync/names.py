"""PURE: where an update travels, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.staging import few

WRAPPED = "base_layer"  # what peft and vLLM call a layer inside its LoRA wrapper


def make_update_zmq_id(step: int | None, sequence: int) -> str:
    """Name of one update, so that a late receiver of an earlier one cannot steal its buckets."""
    return f"step-{'none' if step is None else step}-seq-{sequence}"


def make_update_zmq_handle(handle: str, update_id: str | None) -> str:
    """`ipc://…-update-<id>.sock` for an `ipc://….sock` handle; others stay as they are."""
    if update_id is None or not handle.startswith("ipc://"):
        return handle
    stem = handle.removesuffix(".sock")
    return f"{stem}-update-{update_id}.sock"


def socket_path(handle: str) -> str:
    """The socket file of an `ipc://` handle.

    Raises:
        ValueError: it is a handle of another kind.
    """
    if not handle.startswith("ipc://"):
        raise ValueError(f"weights travel within a host, by ipc:// and not by {handle}")
    return handle.removeprefix("ipc://")


def adapter_modules(names: Iterable[str]) -> set[str]:
    """Modules that the LoRA tensors `<module>.lora_A.weight` and `<module>.lora_B.weight` belong to.

    Raises:
        IncompleteUpdate: a name is not that of a LoRA tensor, or one of a pair is missing, or there is none.
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
    if single := [module for module, found in halves.items() if len(found) == 1]:
        raise IncompleteUpdate(f"half of a LoRA pair is missing for {few(single)}")
    return set(halves)


def without_peft(name: str) -> str:
    """A tensor's name without what peft puts before the names of the model that it wraps."""
    return name.removeprefix("base_model.model.")


def unwrapped(name: str) -> str:
    """`a.to_q.base_layer.weight` -> `a.to_q.weight`: the name that a weight has without any adapter."""
    return ".".join(part for part in name.split(".") if part != WRAPPED)


def wrapped(name: str) -> str:
    """`a.to_q.weight` -> `a.to_q.base_layer.weight`."""
    module, _, leaf = name.rpartition(".")
    return f"{module}.{WRAPPED}.{leaf}"


def replaced(name: str, table: Sequence[tuple[str, str]]) -> str:
    """A dotted name with every left side of `table`, such as `.to_out.`, replaced by its right side."""
    dotted = f".{name}."
    for old, new in table:
        dotted = dotted.replace(old, new)
    return dotted[1:-1]


def engine_adapter(
    tensors: Mapping[str, Tensor], peft_config: Mapping[str, Any], checkpoint_names: Sequence[tuple[str, str]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An adapter under the engine's names, in its tensors and in its list of target modules.

    A target that is a pattern stays as it is; where it names no layer of the engine, the adapter is refused later.

    Args:
        checkpoint_names: (part of the engine's names, what checkpoints call it).
    """
    table = [(theirs, ours) for ours, theirs in checkpoint_names]
    settings = dict(peft_config)
    if not isinstance(settings.get("target_modules"), (str, type(None))):
        settings["target_modules"] = [replaced(target, table) for target in settings["target_modules"]]
    return {replaced(name, table): tensor for name, tensor in tensors.items()}, settings


def unpacked(name: str, packed: dict[str, list[str]]) -> list[str]:
    """Names under which the parts of a fused weight are sent; the name itself where it is not fused.

    Args:
        packed: `{"to_qkv": ["to_q", "to_k", "to_v"]}`, fused module -> its parts; either may be a dotted path.
    """
    dotted = f".{name}."
    for fused, parts in packed.items():
        if f".{fused}." in dotted:
            return [dotted.replace(f".{fused}.", f".{part}.")[1:-1] for part in parts]
    return [name]
