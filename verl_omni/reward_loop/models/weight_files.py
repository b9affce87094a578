"""Files of released weights that transformers does not load: where they are, what they hold, what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.setting_types import MODEL
from verl_omni.utils.model_folder import model_folder


def weights_file(path: str, name: str) -> Path:
    """The file of the weights: `path` itself, or the file `name` in that folder or repository of the hub.

    Raises:
        FileNotFoundError: it does not exist.
    """
    named = model_folder(path, MODEL)
    file = named / name if named.is_dir() else named
    if not file.is_file():
        raise FileNotFoundError(f"{MODEL}: {file} does not exist; write the folder with {name}, or that file")
    return file


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file, or of a file of torch; of nothing else, so that no code of it runs."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(file))
    import torch

    return dict(torch.load(file, map_location="cpu", weights_only=True))


def load_weights(module: Any, weights: Mapping[str, Tensor], file: Path, kind: str) -> None:
    """Load all weights of a module; tensors that it has no place for are left out.

    Args:
        kind: the model that the file should hold, for the message.

    Raises:
        ValueError: a weight is missing, or has another shape.
    """
    expected = module.state_dict()
    for name, tensor in expected.items():
        if name not in weights:
            raise ValueError(f"{MODEL}: {file} lacks the weight {name}; write the weights of {kind}")
        if weights[name].shape != tensor.shape:
            raise ValueError(
                f"{MODEL}: {file} has {name} with the shape {list(weights[name].shape)}, expected "
                f"{list(tensor.shape)}; write the weights of {kind}"
            )
    module.load_state_dict({name: weights[name] for name in expected})
