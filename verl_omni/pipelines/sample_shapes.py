"""Shapes of a sample's tensors, from a model's configuration files: the module `shapes.py` of a family's folder."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from verl_omni.pipelines.registry import family

if TYPE_CHECKING:  # `drl` checks sizes where torch is not installed
    import torch
    from torch import Tensor

Configs = Mapping[str, Mapping[str, Any]]  # a component's config.json, by the component's name
# Height and width in pixels, None where the model has its own, to why no sample has them; None if one has.
SizeCheck = Callable[[int | None, int | None], str | None]


class SampleShapes(Protocol):
    """Interface of a family's module `shapes.py`.

    `pipeline` are the settings of the diffusion pipeline (`rollout.pipeline`).

    Attributes:
        SPLITS_SEQUENCE: whether diffusers can split the transformer's sequence over ranks (its `_cp_plan`).
    """

    SPLITS_SEQUENCE: bool

    def sample(self, configs: Configs, pipeline: Any, prompt_rows: int) -> dict[str, Tensor]:
        """`latents` and each of the family's `CONDITIONS` of one sample, without a batch dimension.

        Floating-point tensors are float32 and have no data (they are on the meta device), as in `example`;
        tensors that a shape depends on have their values.

        Args:
            prompt_rows: number of rows of a prompt's embeddings.
        """

    def sequence_length(self, configs: Configs, pipeline: Any) -> int:
        """Number of tokens of one sample's latents in the transformer; only where `SPLITS_SEQUENCE`."""

    def decoder_input(self, configs: Configs, pipeline: Any) -> tuple[int, ...]:
        """Shape of the latents of one sample that the VAE decodes, without a batch dimension."""

    # A family whose samples have sides of some sizes only also has `size_step(configs) -> int`: height and width in
    # pixels of one token of the transformer, and with a table of positions `longest_side(configs) -> int`, in pixels.
    # A family whose engine divides its transformer over accelerators also has `DIVIDED_BY_ENGINES`: the keys of the
    # transformer's config.json whose numbers the tensor parallel size must divide, and what they count.
    # A family whose prompts are split over ranks too, and must not be padded for it, also has `SPLITS_PROMPT = True`.
    # A family with input images also has `encoder_input(configs, pipeline) -> tuple[int, ...]`: the shape of the pixels
    # of one sample that the VAE encodes, without a batch dimension.


def sample_shapes(architecture: str | None) -> SampleShapes:
    """Import the shapes of a model's family.

    Raises:
        ValueError: no family has this architecture, or its family has no shapes.
    """
    module = family(architecture).shapes
    if module is None:
        raise ValueError(f"{architecture}: its model family is registered without `shapes`, which this needs")
    return cast(SampleShapes, importlib.import_module(module))


def read_configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Configurations of a model's transformer and VAE.

    Raises:
        FileNotFoundError: the model has none of one.
    """
    return {
        name: json.loads((folder / name / "config.json").read_text(encoding="utf-8")) for name in ("transformer", "vae")
    }


def size_check(architecture: str | None, folder: Path) -> SizeCheck:
    """The check of the sides of a model's samples; it accepts all if the model's family does not say which it has.

    Raises:
        FileNotFoundError: the transformer or the VAE has no configuration.
        ValueError: no family has this architecture.
    """
    shapes: Any = None if family(architecture).shapes is None else sample_shapes(architecture)
    if not hasattr(shapes, "size_step"):
        return lambda height, width: None
    configs = read_configs(folder)
    step = shapes.size_step(configs)
    longest = shapes.longest_side(configs) if hasattr(shapes, "longest_side") else None

    def check(height: int | None, width: int | None) -> str | None:
        for side, pixels in (("height", height), ("width", width)):
            if pixels is not None and (pixels <= 0 or pixels % step):
                return f"{side} must be a multiple of {step}, not {pixels}; write {max(pixels // step, 1) * step}"
            if pixels is not None and longest is not None and pixels > longest:
                return f"{side} must be at most {longest}, not {pixels}: the model has no more positions"
        return None

    return check


def example(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor without data; float32 unless another dtype is given."""
    import torch

    return torch.empty(shape, dtype=dtype or torch.float32, device="meta")
