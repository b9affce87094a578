"""Export of trained weights: names without peft's additions, and adapters as files for diffusers, peft and engines."""

import enum
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from verl_omni.utils.adapter_folder import DIFFUSERS_FILE, DIFFUSERS_METADATA, PEFT_FILE, PEFT_PREFIX, PEFT_SETTINGS
from verl_omni.weight_sync.names import adapter_modules
from verl_omni.workers.actor.build import ADAPTER, gather
from verl_omni.workers.actor.experts import HIGH_NOISE, LOW_NOISE, Experts


def weights(
    module: nn.Module,
    kind: Literal["lora", "full"],
    instead: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """(name, unsharded tensor) of the adapter or of every base weight; names begin with the transformer's.

    Args:
        instead: values to use instead of the module's, by parameter name.
        dtype: dtype of the tensors; None: the parameters' dtype.
    """
    for name, parameter in module.named_parameters():
        if ("lora_" in name) == (kind == "lora"):
            tensor = gather((instead or {}).get(name, parameter))
            yield (
                _public(name if isinstance(module, Experts) else f"{HIGH_NOISE}.{name}"),
                tensor.to(dtype or tensor.dtype),
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
    """Copy the adapter to CPU memory. Returns a function that writes the copy, in any thread.

    It is written twice, because no format is read by all programs:

    - `pytorch_lora_weights.safetensors`, which diffusers' `load_lora_weights` and other tools for images read. Its
      lora_B is multiplied by alpha / rank and its alpha is the rank, so programs that ignore alpha apply the same
      adapter. (An entry `.alpha` for each module makes diffusers 0.40 refuse the file for Stable Diffusion 3.)
      Diffusers loads the adapter of one transformer, so a second transformer's is in `folder`/transformer_2.
    - `adapter_model.safetensors` and `adapter_config.json`, which peft and engines read, with the trained tensors. Only
      where there are two transformers do module names begin with the transformer's name: engines read one folder.

    Args:
        instead: as in `weights`.
        write: whether this rank writes. Every rank gathers.
    """
    tensors = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in weights(module, "lora", instead)}
    settings = peft_config(module)

    def save() -> None:
        if write:
            folder.mkdir(parents=True, exist_ok=True)
            _save_for_diffusers(tensors, settings, folder)
            _save_for_peft(tensors, settings, folder)

    return save


def _save_for_diffusers(tensors: Mapping[str, Tensor], settings: Mapping[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    rank = settings["r"]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings["use_rslora"] else rank)
    plain = {**settings, "lora_alpha": rank, "use_rslora": False}
    metadata = {f"{HIGH_NOISE}.{name}": value for name, value in plain.items() if value is not None}
    description = {"format": "pt", DIFFUSERS_METADATA: json.dumps(metadata)}
    for component, subfolder in ((HIGH_NOISE, folder), (LOW_NOISE, folder / LOW_NOISE)):
        scaled = {
            f"{HIGH_NOISE}.{name.removeprefix(f'{component}.')}": tensor * scale if ".lora_B." in name else tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{component}.")
        }
        if scaled:
            subfolder.mkdir(parents=True, exist_ok=True)
            save_file(scaled, subfolder / DIFFUSERS_FILE, metadata=description)


def _save_for_peft(tensors: Mapping[str, Tensor], settings: Mapping[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    single = all(name.startswith(f"{HIGH_NOISE}.") for name in tensors)
    named = {name.removeprefix(f"{HIGH_NOISE}.") if single else name: tensor for name, tensor in tensors.items()}
    # Full names, because peft and vLLM-Omni read a pattern or the end of a name differently.
    modules = sorted(adapter_modules(named))
    text = json.dumps(
        {**settings, "target_modules": modules, "exclude_modules": None, "inference_mode": True}, indent=2
    )
    save_file({PEFT_PREFIX + name: tensor for name, tensor in named.items()}, folder / PEFT_FILE, {"format": "pt"})
    (folder / PEFT_SETTINGS).write_text(text + "\n", encoding="utf-8")
