"""Messages of reward servers that speak pickle, the protocol of the reference's HTTP scorer and of deepgen_rl.

Unpickling can run any code, so an answer here may only contain numbers, texts, bytes, lists, tuples, dictionaries, and
arrays and numbers of numpy; anything else is refused before it is made. numpy's own functions are not called: they let
a pickle say where in memory the values of an array are. Source of the protocol: the reference's page "Using an External
HTTP Scorer Service" (verl-omni.readthedocs.io, May 2026).
"""

import io
import math
import pickle
import re
from collections.abc import Sequence
from reprlib import Repr
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from typing_extensions import override

ARRAY = "numpy.ndarray"  # what an answer gets for the class, which it may only pass on
_NUMBERS = re.compile(r"[biuf][0-9]{1,2}")  # numpy's types of numbers, such as f4
_CORE = re.compile(r"numpy\._?core\.(multiarray|numeric)")
_SHOWN = 200  # characters of an answer in an error


class PickleRefused(ValueError):
    """An answer that is no pickle, or has something other than plain values."""


class _Type:
    """A type of numbers as an answer describes it; of the description, only the name and the byte order count."""

    def __init__(self, name: object) -> None:
        if not isinstance(name, str) or not _NUMBERS.fullmatch(name):
            raise PickleRefused(f"the answer has an array of {_show(name)}, and may only have arrays of numbers")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """An array of numbers that unpickling fills."""

    @override
    def __setstate__(self, state: Any, /) -> None:
        *_, shape, kind, fortran, content = state
        if not isinstance(content, bytes) or math.prod(shape) * kind.dtype.itemsize != len(content):
            raise PickleRefused("the answer has an array whose values are not in it")
        super().__setstate__((1, shape, kind.dtype, bool(fortran), content))  # type: ignore[arg-type]


class _PlainValues(pickle._Unpickler):
    """Unpickler that refuses every class and function except the ones for numpy arrays and numbers.

    It extends the unpickler written in Python, because the C unpickler allocates a memo table as long as the largest
    memo index in an answer. Bound methods stand in for numpy's functions, so that an answer cannot change their
    attributes.
    """

    @override
    def find_class(self, module: str, name: str) -> Any:
        named = (module, name)
        if named == ("numpy", "ndarray"):
            return ARRAY
        if named == ("numpy", "dtype"):
            return self._type
        if named == ("_codecs", "encode"):
            return self._bytes
        if _CORE.fullmatch(module) and name in ("_reconstruct", "scalar", "_frombuffer"):
            return getattr(self, f"_{name.strip('_')}")
        raise PickleRefused(f"the answer names {module}.{name}, and may only have plain values and numpy's")

    def _type(self, name: object, *_: object) -> _Type:
        return _Type(name)

    def _reconstruct(self, *_: object) -> _Array:
        return _Array(0)

    def _scalar(self, kind: _Type, content: bytes) -> Any:
        return np.frombuffer(content, kind.dtype, count=1)[0]

    def _frombuffer(self, content: bytes, kind: _Type, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
        array = np.frombuffer(content, kind.dtype)
        return array.reshape(shape, order=order) if axes is None else array.reshape(shape).transpose(axes)

    def _bytes(self, text: str, encoding: str) -> bytes:
        """Bytes of the protocols before 3."""
        if encoding != "latin1":
            raise PickleRefused(f"the answer encodes a text in {_show(encoding)}")
        return text.encode(encoding)


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
    listed = answer.get("scores") if isinstance(answer, dict) else None
    values = listed.tolist() if isinstance(listed, np.ndarray) else listed
    if not isinstance(values, (list, tuple)) or len(values) != count:
        raise ValueError(f"the answer has no {count} 'scores': {_show(answer)}")
    numbers = [
        value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value for value in values
    ]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError(f"a score is no number: {_show(values)}")
    try:
        return [float(number) for number in numbers]
    except OverflowError as error:
        raise ValueError(f"a score is too large: {_show(values)}") from error


def error_in(body: bytes) -> str | None:
    """The last line of an answer's `error`, which of a traceback names the cause; None if the answer has none."""
    try:
        answer = decode(body)
    except PickleRefused:
        return None
    text = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _show(value: Any) -> str:
    """The beginning of a value's text. One list may be in an answer many times, so its whole text may have no end."""
    shortener = Repr()
    shortener.maxlevel = 3
    shortener.maxstring = _SHOWN
    shortener.maxother = _SHOWN
    return shortener.repr(value)[:_SHOWN]


def _jpeg(image: Tensor) -> bytes:
    if image.ndim != 3:
        raise ValueError(f"the pickle protocol has images [3, H, W] only, and this is a video {list(image.shape)}")
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG")
    return file.getvalue()
