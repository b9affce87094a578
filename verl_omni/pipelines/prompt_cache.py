"""`PromptCache`: prompt embeddings on disk, so that each prompt is encoded once for all epochs and runs."""

import hashlib
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

FORMAT = "1"  # of the files; another one is another folder
SUFFIX = ".safetensors"
CHECKSUM = "sha256"
READERS = 8  # threads that read the model's files
_PARTS = re.compile(r"(text_encoder|tokenizer)(_\d+)?")
_HEADER_SIZE = 8  # bytes of the number that a safetensors file begins with

Prompt = TypeVar("Prompt", str, list[int], str | list[int])
Options = Mapping[str, str | int | float | bool | None]

logger = logging.getLogger(__name__)


def encoder_digest(model: Path, environment: Mapping[str, str]) -> str:
    """Digest of everything but the prompt that embeddings depend on: 32 hexadecimal digits.

    It reads the content of all files of the model's text encoders and tokenizers.

    Args:
        model: folder in diffusers' layout.
        environment: names and values of everything else that embeddings depend on, such as versions of libraries.
    """
    files = sorted(
        path for part in model.iterdir() if _PARTS.fullmatch(part.name) for path in part.rglob("*") if path.is_file()
    )
    with ThreadPoolExecutor(READERS) as pool:
        digests = list(pool.map(_file_digest, files))
    contents = [(str(path.relative_to(model)), digest) for path, digest in zip(files, digests, strict=True)]
    return _digest([FORMAT, sorted(environment.items()), contents])[:32]


class PromptCache:
    """Embeddings of prompts, a safetensors file for each, below `folder`/`encoders`.

    Files are renamed into place and have a checksum, so several processes may use a folder at the same time. A file
    that cannot be used is written again; of files that cannot be used or written, the first is logged.

    Args:
        encoders: what `encoder_digest` returns.
        awake: context in which the text encoders can run.
    """

    def __init__(
        self, folder: Path, encoders: str, awake: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.folder = folder / encoders
        self._awake = awake
        self._warned: set[str] = set()

    def encode(
        self,
        prompts: Sequence[Prompt],
        encode: Callable[[list[Prompt]], tuple[Tensor, ...]],
        options: Options,
        device: torch.device,
    ) -> tuple[Tensor, ...]:
        """Embeddings of prompts, from the cache, or encoded and added to it.

        Each prompt is encoded alone: its embeddings do not depend on which others the cache has.

        Args:
            encode: tensors [P, ...] of P prompts.
            options: all arguments of `encode` besides the prompts that its result depends on.

        Returns:
            Tensors [P, ...] on `device`; rows of different lengths are padded with zeros.
        """
        paths = [self._path(prompt, options) for prompt in prompts]
        rows = [self._read(path) for path in paths]
        missing = [index for index, row in enumerate(rows) if row is None]
        if missing:
            with self._awake():
                encoded = [tuple(tensor[0] for tensor in encode([prompts[index]])) for index in missing]
            for index, row in zip(missing, encoded, strict=True):
                self._write(paths[index], row)
                rows[index] = row
        columns = zip(*(row for row in rows if row is not None), strict=True)
        return tuple(pad_sequence([row.to(device) for row in column], batch_first=True) for column in columns)

    def _path(self, prompt: str | list[int], options: Options) -> Path:
        return self.folder / f"{_digest([prompt, sorted(options.items())])}{SUFFIX}"

    def _read(self, path: Path) -> tuple[Tensor, ...] | None:
        """Tensors of a file, in CPU memory; None: there is none that can be used."""
        try:
            content = path.read_bytes()
            tensors = load(content)
            if _header(content)[CHECKSUM] != _checksum(tensors):
                raise ValueError("its checksum differs")
            return tuple(tensors[str(number)] for number in range(len(tensors)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            self._warn("read", f"the prompt is encoded again, because {path} cannot be used: {error}")
            return None

    def _write(self, path: Path, row: Sequence[Tensor]) -> None:
        tensors = {str(number): tensor.detach().cpu().clone().contiguous() for number, tensor in enumerate(row)}
        # Other engine workers, also of other machines, may write the same file at the same time.
        writer = f"{socket.gethostname()}-{os.getpid()}-{threading.get_native_id()}"
        aside = path.with_name(f".{path.stem}.{writer}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(save(tensors, {CHECKSUM: _checksum(tensors)}))
            aside.replace(path)
        except OSError as error:
            self._warn("write", f"prompts are encoded again in the next epoch, because {path} was not written: {error}")
            _remove(aside)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("prompt cache: %s", text)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("%s stays: %s", path, error)


def _header(content: bytes) -> Mapping[str, str]:
    """Metadata of a safetensors file."""
    end = _HEADER_SIZE + int.from_bytes(content[:_HEADER_SIZE], "little")
    metadata: Mapping[str, str] = json.loads(content[_HEADER_SIZE:end])["__metadata__"]
    return metadata


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Checksum of names, dtypes, shapes and values."""
    return hashlib.sha256(save(dict(tensors))).hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, CHECKSUM).hexdigest()
