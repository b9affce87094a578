"""Files of models that score: where they are, what is missing, and weights that transformers does not load."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.setting_types import MODEL
from verl_omni.utils.model_folder import model_folder


def failures(*checks: Callable[[], object]) -> list[str]:
    """The messages of the checks that fail with `FileNotFoundError` or `ValueError`."""
    messages = []
    for check in checks:
        try:
            check()
        except (FileNotFoundError, ValueError) as error:
            messages.append(str(error))
    return messages


def folder_with(path: str, setting: str, kind: str, *files: str) -> Path:
    """The folder of a model, which has these files.

    Args:
        setting: where `path` was given, and kind: what it should be the folder of, for messages.

    Raises:
        FileNotFoundError: there is no such folder, or no such file in it.
    """
    folder = model_folder(path, setting)
    for name in files:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{setting}: {folder / name} does not exist; write the folder of {kind}")
    return folder


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
