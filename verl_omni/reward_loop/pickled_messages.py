"""Messages of reward servers that speak pickle, the protocol of the reference's HTTP scorer and of deepgen_rl.

Unpickling can run any code, so an answer here may only contain numbers, texts, bytes, lists, tuples, dictionaries, and
arrays and numbers of numpy; anything else is refused before it is made. Source of the protocol: the reference's page
"Using an External HTTP Scorer Service" (verl-omni.readthedocs.io, May 2026).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from typing_extensions import override

JSON, PICKLE = "json", "pickle"
PROTOCOLS = (JSON, PICKLE)
ARRAY = "numpy.ndarray"  # what an answer gets for the class, which it may only pass on
# What numpy's arrays and numbers are made with, by versions 1 and 2; none of it calls what an answer names, or makes
# more than an answer holds.
_NUMPY = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "scalar"), ("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
} | {("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode")}


class PickleRefused(ValueError):
    """An answer that is no pickle, or has something other than plain values."""


class _PlainValues(pickle.Unpickler):
    """Refuses every class and function that an answer names, but those of numpy's arrays and numbers."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NUMPY:
            raise PickleRefused(f"the answer names {module}.{name}, and may only have plain values and numpy's")
        if name == "_reconstruct":
            return _empty_array
        return ARRAY if name == "ndarray" else super().find_class(module, name)


def _empty_array(*_: Any) -> np.ndarray:
    """An array that unpickling fills; numpy's own function makes one of any size."""
    return np.ndarray(0)


def encode(images: Sequence[Tensor], prompts: Sequence[str]) -> bytes:
    """A request for images uint8 [3, H, W]: `images`, each as JPEG, `prompts`, and the empty `metadata`.

    Raises:
        ValueError: an image is a video: the protocol has none.
    """
    return pickle.dumps({"images": [_jpeg(image) for image in images], "prompts": list(prompts), "metadata": {}})


def decode(body: bytes) -> Any:
    """The plain values of an answer.

    Raises:
        PickleRefused: it is no pickle, or not of plain values.
    """
    try:
        return _PlainValues(io.BytesIO(body)).load()
    except PickleRefused:
        raise
    except Exception as error:  # unpickling raises errors of any type for bytes that are no pickle
        raise PickleRefused(f"the answer is no pickle ({type(error).__name__}: {error})") from error


def scores(answer: Any, count: int) -> list[float]:
    """The numbers of `scores`, one for each image.

    Raises:
        ValueError: there are not `count` of them, or one is no number, or too large for a float.
    """
    found = answer.get("scores") if isinstance(answer, dict) else None
    values = found.tolist() if isinstance(found, np.ndarray) else found
    if not isinstance(values, (list, tuple)) or len(values) != count:
        raise ValueError(f"the answer has no {count} 'scores': {str(answer)[:200]}")
    numbers = [
        each.item() if isinstance(each, (np.generic, np.ndarray)) and each.size == 1 else each for each in values
    ]
    if not all(isinstance(each, (int, float)) for each in numbers):
        raise ValueError(f"a score is no number: {str(values)[:200]}")
    try:
        return [float(each) for each in numbers]
    except OverflowError as error:
        raise ValueError(f"a score is too large: {str(values)[:200]}") from error


def error_in(body: bytes) -> str | None:
    """The last line of an answer's `error`, which of a traceback names the cause; None if the answer has none."""
    try:
        answer = decode(body)
    except PickleRefused:
        return None
    text = str(answer["error"]) if isinstance(answer, dict) and answer.get("error") else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _jpeg(image: Tensor) -> bytes:
    if image.ndim != 3:
        raise ValueError(f"the pickle protocol has images [3, H, W] only, and this is a video {list(image.shape)}")
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG")
    return file.getvalue()
