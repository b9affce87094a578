"""Scorer of aesthetics: LAION's predictor on CLIP image embeddings (LAION-Aesthetics; LAION-5B, arXiv:2210.08402)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Device, File, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

MODEL_CLASS = "verl_omni.reward_loop.models.clip_model:ClipModel"
WEIGHTS = "openai/clip-vit-large-patch14"
_NAME = re.compile(r"(?:layers\.(\d+)\.)?(weight|bias)")
Head = Annotated[File, Field(description="The predictor's weights, a .pth or .safetensors file.")]


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    head_path: Head,
    model_name_or_path: ModelFolder = WEIGHTS,
    device: Device = "cpu",
) -> list[float]:
    """The predictor's output for the normalized image embedding, not bounded; of a video, the mean of its frames.

    Ratings of people, which it learned, were 1 to 10. The head is a chain of linear layers without activations: the
    linear predictor has one, the MLP of "improved aesthetic predictor", which DDPO (arXiv:2305.13301) and Flow-GRPO
    use, has five.

    Args:
        head_path: the head's weights, a .pth or .safetensors file.
        model_name_or_path: the CLIP model that the head was trained on, a folder or a repository in the hub cache.

    Raises:
        FileNotFoundError: `head_path` or the model does not exist.
        ValueError: the head does not fit; or as `load_once`.
    """
    import torch

    from verl_omni.reward_loop.models.clip_model import ClipModel, load_once
    from verl_omni.reward_loop.video_frames import mean_over_frames

    clip = load_once(ClipModel, model_name_or_path, model_name_or_path, device)
    head = load_head(head_path, clip.width)

    def score(images: Sequence[Tensor], prompts: Sequence[str]) -> Tensor:
        outputs = clip.embed_images(images)
        for weight, bias in head:
            outputs = torch.nn.functional.linear(outputs, weight, bias)
        return outputs[:, 0]

    return mean_over_frames(solution_images, [""] * len(solution_images), score)


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about what is missing on this machine."""
    head = Path(str(given.get("head_path")))
    return [] if head.is_file() else [f"head_path: no file {head}"]


@cache
def load_head(path: str, width: int) -> list[tuple[Tensor, Tensor]]:
    """Weights fp32 [out, in] and biases [out] of the layers, in order; read once per process, as the CLIP model is.

    Args:
        width: length of an embedding.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it is no chain of linear layers from `width` to 1.
    """
    from verl_omni.reward_loop.models.weight_files import read_weights

    if not Path(path).is_file():
        raise FileNotFoundError(f"head_path: no file {path}")
    weights = read_weights(Path(path))
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        if (match := _NAME.fullmatch(name)) is None:
            raise ValueError(f"head_path: {path} has {name!r}; expected weight and bias, or layers.N.weight and .bias")
        layers.setdefault(int(match[1] or 0), {})[match[2]] = tensor.float()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    before = width
    for layer in (layers[number] for number in sorted(layers)):
        if layer.keys() != {"weight", "bias"} or layer["weight"].ndim != 2 or layer["weight"].shape[1] != before:
            raise ValueError(f"head_path: {path} is no chain of linear layers from {width} numbers to 1: {shapes}")
        before = layer["weight"].shape[0]
    if before != 1:
        raise ValueError(f"head_path: {path} returns {before} numbers, expected 1: {shapes}")
    return [(layers[number]["weight"], layers[number]["bias"]) for number in sorted(layers)]
