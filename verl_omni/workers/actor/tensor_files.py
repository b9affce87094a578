"""`TensorFiles`: the tensors of a component of a diffusers folder, read slice by slice."""

import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from torch import Tensor

FILE = "diffusion_pytorch_model.safetensors"
INDEX = f"{FILE}.index.json"

logger = logging.getLogger(__name__)


class TensorFiles:
    """The tensors of a component's safetensors files, read slice by slice.

    Args:
        folder: has `diffusion_pytorch_model.safetensors`, or several files and their index.

    Attributes:
        bytes_read: bytes of all tensors and slices read so far, in the files' dtypes.

    Raises:
        FileNotFoundError: a file that the index names does not exist.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self.folder = folder
        self.bytes_read = 0
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in _files(folder):
            opened = self._stack.enter_context(safe_open(path, "pt"))
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Compare names and shapes; only the files' headers are read. Tensors that the model does not use are logged.

        Raises:
            ValueError: tensors are missing or have other shapes; the message names them.
        """
        problems = [f"{name} is missing" for name in expected if name not in self._files]
        for name in expected.keys() & self._files.keys():
            shape = tuple(self._files[name].get_slice(name).get_shape())
            if shape != expected[name]:
                problems.append(f"{name} has shape {list(shape)} instead of {list(expected[name])}")
        if problems:
            more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise ValueError(
                f"{self.folder} is not the model that its config.json describes: {'; '.join(sorted(problems)[:5])}"
                f"{more}; download the folder again"
            )
        if unused := sorted(self._files.keys() - expected.keys()):
            logger.warning("%s has %d tensors that the model does not use: %s", self.folder, len(unused), unused[:5])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by its name; only the files' headers are read."""
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def read(self, name: str, part: tuple[slice, ...] = ()) -> Tensor:
        """A tensor, or a slice of it, in the file's dtype, in CPU memory."""
        opened = self._files[name]
        value: Tensor = opened.get_slice(name)[part] if part else opened.get_tensor(name)
        self.bytes_read += value.nbytes
        return value


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    else:
        names = [FILE]
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} does not exist; download the model's folder again")
    return [folder / name for name in names]
