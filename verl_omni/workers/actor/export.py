"""Export of trained weights: names without peft's additions, and files in diffusers' LoRA format."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from verl_omni.workers.actor.build import ADAPTER, gather
from verl_omni.workers.actor.experts import HIGH_NOISE, LOW_NOISE, Experts

LORA_FILE = "pytorch_lora_weights.safetensors"


def weights(
    module: nn.Module,
    kind: Literal["lora", "full"],
    instead: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """(name, unsharded tensor) of the adapter or of every base weight; names begin with that of the transformer.

    Args:
        instead: values by parameter name that replace those of the module.
        dtype: dtype of the tensors; None: that of the parameters.
    """
    for name, parameter in module.named_parameters():
        if ("lora_" in name) == (kind == "lora"):
            whole = gather((instead or {}).get(name, parameter))
            yield (
                _public(name if isinstance(module, Experts) else f"{HIGH_NOISE}.{name}"),
                whole.to(dtype or whole.dtype),
            )


def _public(name: str) -> str:
    """Remove peft's additions to a name: `attn.to_q.lora_A.default.weight` -> `attn.to_q.lora_A.weight`."""
    return name.replace(f".{ADAPTER}.", ".").replace(".base_layer.", ".")


def peft_config(module: Any) -> dict[str, Any]:
    """`PeftConfig.to_dict()` as JSON data: sets sorted, enumerations as strings."""
    return {name: _plain(value) for name, value in module.peft_config[ADAPTER].to_dict().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value


def stage_adapter(
    module: Any, folder: Path, instead: Mapping[str, Tensor] | None = None, *, write: bool
) -> Callable[[], None]:
    """Copy the adapter to host memory. Returns what writes the copy in diffusers' LoRA format, in any thread.

    Diffusers loads an adapter of one transformer: that of a second one is in `folder`/transformer_2.

    Args:
        instead: as in `weights`.
        write: whether this rank writes. Every rank gathers.
    """
    found = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in weights(module, "lora", instead)}
    metadata = {f"{HIGH_NOISE}.{name}": value for name, value in peft_config(module).items() if value is not None}

    def save() -> None:
        if not write:
            return
        import json

        from safetensors.torch import save_file

        for component, place in ((HIGH_NOISE, folder), (LOW_NOISE, folder / LOW_NOISE)):
            begin = f"{component}."
            own = {f"{HIGH_NOISE}.{name.removeprefix(begin)}": found[name] for name in found if name.startswith(begin)}
            if own:
                place.mkdir(parents=True, exist_ok=True)
                description = {"format": "pt", "lora_adapter_metadata": json.dumps(metadata)}
                save_file(own, place / LORA_FILE, metadata=description)

    return save
