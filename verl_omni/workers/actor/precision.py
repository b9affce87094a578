"""PURE: dtypes of the trained model, and the parts of it that stay in float32."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from verl_omni.workers.config import DiffusionFSDPConfig
from verl_omni.workers.config.diffusion.dtypes import parse_dtype


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of the trained model. Trained weights, their gradients and the optimizer state are always float32.

    Attributes:
        frozen: dtype of frozen weights in memory.
        compute: dtype that layers compute in.
        reduce: dtype in which gradients are reduced and accumulated.
        buffers: dtype that buffers are cast to after loading; None: as they are loaded.
    """

    frozen: torch.dtype
    compute: torch.dtype
    reduce: torch.dtype = torch.float32
    buffers: torch.dtype | None = None

    @property
    def mixed(self) -> bool:
        """Whether layers need weights in another dtype than the one they are kept in."""
        return self.frozen != torch.float32 or self.compute != torch.float32


def resolve(config: DiffusionFSDPConfig, *, lora: bool) -> Precision:
    """The dtypes that the settings select.

    Args:
        lora: whether an adapter is trained on frozen weights; otherwise all weights are trained, in float32: of AdamW's
            steps at learning rate 1e-5, 84% of the weights would lose all in bfloat16
            (`tests/ml/workers/actor/test_precision.py`).
    """
    mixed = config.mixed_precision
    compute = parse_dtype("mixed_precision.param_dtype", mixed.param_dtype)
    kept = None if config.model_dtype is None else parse_dtype("fsdp_config.model_dtype", config.model_dtype)
    return Precision(
        frozen=(kept or compute) if lora else torch.float32,
        compute=compute,
        reduce=parse_dtype("mixed_precision.reduce_dtype", mixed.reduce_dtype),
        buffers=None if mixed.buffer_dtype is None else parse_dtype("mixed_precision.buffer_dtype", mixed.buffer_dtype),
    )


def float32_parts(module: nn.Module) -> Iterator[str]:
    """Names of the parameters and buffers that a diffusers model keeps in float32 (`_keep_in_fp32_modules`)."""
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    for named in (module.named_parameters(), module.named_buffers()):
        for name, _ in named:
            if kept & set(name.split(".")):
                yield name
