"""The scorer `ocr` on drawn images; the models are in the wheel of rapidocr, so nothing is downloaded."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from verl_omni.reward_loop.rewards import get_scorer


def drawn(text: str) -> Tensor:
    """An image uint8 [3, 160, 320] with black text on white."""
    image = Image.new("RGB", (320, 160), "white")
    ImageDraw.Draw(image).text((20, 20), text, fill="black", font=ImageFont.load_default(40))
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def score(image: Tensor, prompt: str, truth: str | None = None) -> dict[str, Any]:
    result: dict[str, Any] = get_scorer("ocr")("d", image, prompt if truth is None else truth, {"prompt": prompt})
    return result


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        ("Hello World", 'a sign that says "Hello World"', {"score": 1.0, "exact": 1.0}),
        ("HELLO\nWORLD", 'a sign with "hello world" on it', {"score": 1.0, "exact": 1.0}),
        ("Hello World", 'the word "World", not "Hello"', {"score": 1.0, "exact": 0.0}),
        ("Hello World", 'a sign that says "Jello Worlds"', {"score": 1 - 2 / 11, "exact": 0.0}),
        ("Hello World", 'the letters "XQ"', {"score": 0.0, "exact": 0.0}),
        ("", 'a sign that says "Hello"', {"score": 0.0, "exact": 0.0}),
    ],
)
def test_the_score_is_one_minus_the_share_of_edits_in_the_quoted_text(
    text: str, prompt: str, expected: dict[str, float]
) -> None:
    assert score(drawn(text), prompt) == pytest.approx(expected)


def test_the_text_of_the_row_counts_before_quotes_in_its_prompt() -> None:
    image = drawn("OPEN 24")
    assert score(image, 'a "neon" sign', truth="open 24")["score"] == 1.0
    assert score(image, 'a "neon" sign')["score"] < 0.5


@pytest.mark.parametrize("prompt", ["a sign", 'a 5" screen', 'a sign that says ""'])
def test_a_row_without_text_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="write it between double quotes"):
        score(drawn("Hello"), prompt)
