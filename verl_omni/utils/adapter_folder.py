"""A LoRA adapter as a folder: names of its files, and peft's layout, `adapter_config.json` and a safetensors file."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

REFUSED = "LoRA adapter refused"  # beginning of an error of an engine's worker, which reaches the server as text
DIFFUSERS_FILE = "pytorch_lora_weights.safetensors"  # the adapter as diffusers reads it
DIFFUSERS_METADATA = "lora_adapter_metadata"  # entry of that file's header: the settings, as JSON
PEFT_FILE = "adapter_model.safetensors"
PEFT_SETTINGS = "adapter_config.json"
PEFT_PREFIX = "base_model.model."  # peft's name for the module that it wraps


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read an adapter.

    Returns:
        Tensors `<module>.lora_A.weight` [rank, in] and `<module>.lora_B.weight` [out, rank] by name, without peft's
        prefix, and the settings of `peft.LoraConfig`.

    Raises:
        ValueError: a file is missing or unreadable; the message names it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings = json.loads((folder / PEFT_SETTINGS).read_bytes())
        tensors = load_file(folder / PEFT_FILE)
    except FileNotFoundError as error:
        missing = Path(error.filename).name if error.filename else PEFT_FILE
        raise ValueError(f"no LoRA adapter in {str(folder)!r}: {missing} is not there") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"the LoRA adapter in {str(folder)!r} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{folder / PEFT_SETTINGS} is not a JSON object")
    return {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}, settings


def content_id(folder: Path) -> int:
    """A positive 63-bit id of an adapter's path and content, as far as sizes and times of its files tell it.

    Raises:
        ValueError: a file is missing.
    """
    parts = [str(folder)]
    for name in (PEFT_SETTINGS, PEFT_FILE):
        try:
            state = (folder / name).stat()
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise ValueError(f"{name} is not there") from error
        parts.append(f"{state.st_ino} {state.st_size} {state.st_mtime_ns}")
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode(errors="replace")).digest()[:8], "big") >> 1 or 1
