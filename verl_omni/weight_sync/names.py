"""PURE: where an update travels, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable


def make_update_zmq_id(step: int | None, sequence: int) -> str:
    """Name of one update, so that a late receiver of an earlier one cannot steal its buckets."""
    return f"step-{'none' if step is None else step}-seq-{sequence}"


def make_update_zmq_handle(handle: str, update_id: str | None) -> str:
    """`ipc://…-update-<id>.sock` for an `ipc://….sock` handle; others stay as they are."""
    if update_id is None or not handle.startswith("ipc://"):
        return handle
    stem = handle.removesuffix(".sock")
    return f"{stem}-update-{update_id}.sock"


def socket_path(handle: str) -> str | None:
    """The socket file of an `ipc://` handle."""
    return handle.removeprefix("ipc://") if handle.startswith("ipc://") else None


def adapter_modules(names: Iterable[str]) -> set[str]:
    """Modules that the LoRA tensors `<module>.lora_A.weight` and `<module>.lora_B.weight` belong to.

    Raises:
        ValueError: a name is not that of a LoRA tensor, or one of a pair is missing.
    """
    halves: dict[str, set[str]] = {}
    for name in names:
        for half in ("lora_A", "lora_B"):
            if name.endswith(f".{half}.weight"):
                halves.setdefault(name.removesuffix(f".{half}.weight"), set()).add(half)
                break
        else:
            raise ValueError(f"{name} is not a LoRA tensor")
    if single := sorted(module for module, found in halves.items() if len(found) == 1):
        raise ValueError(f"half of a LoRA pair is missing for {single}")
    return set(halves)
