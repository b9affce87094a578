"""PURE: names of dtypes in settings."""

import torch

# verl's names, which recipes of the reference use, and torch's.
DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


def parse_dtype(setting: str, name: str) -> torch.dtype:
    """The dtype of a name.

    Args:
        setting: name of the setting, for the error message.

    Raises:
        ValueError: neither float32 nor bfloat16, under verl's or torch's name; float16 would need a loss scale.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(f"{setting}: {name!r} is not supported; write float32 or bfloat16") from None
