"""Scorer of rendered text, read by an OCR model on the CPU (Flow-GRPO, arXiv:2505.05470)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.rewards import check_picture
from verl_omni.reward_loop.rewards.genrm_ocr import normalize, text_score

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

MODALITY = "image"
READS_TEXT = True
LONGEST_SIDE = 960  # pixels; the text detector scales larger images down, and leaves smaller ones as they are
_READING = threading.Lock()  # scorers run in threads, and a reader keeps state during a call


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: str, extra_info: Mapping[str, Any]
) -> dict[str, float]:
    """max(1 - edits / length of the text to show, 0), from 0 to 1, by RapidOCR; 1 where the image contains it.

    edits is the Levenshtein distance between all text that is read and the text to show, both without whitespace,
    case-folded and in Unicode's form NFKC. The text to show is the row's `ground_truth`, or, where that is the prompt,
    what stands between the prompt's first two double quotes.

    Returns:
        `score`, and `exact`: 1 if nothing but the text was read, otherwise 0.

    Raises:
        ValueError: the row has no text to show, or the sample is a video.
    """
    check_picture(solution_image, "ocr")
    wanted = normalize(target(str(ground_truth), extra_info.get("prompt")))
    if not wanted:
        raise ValueError(
            "ocr: the row has no text to compare with; write it between double quotes in the prompt, or into a column "
            f"ground_truth (it is {ground_truth!r})"
        )
    pixels = solution_image.permute(1, 2, 0).contiguous().numpy()
    with _READING:
        read = normalize("".join(_reader()(pixels)))
    return {"score": 1.0 if wanted in read else text_score(read, wanted), "exact": float(read == wanted)}


def target(ground_truth: str, prompt: Any) -> str:
    """PURE: the text that an image should show; empty if the prompt has none between double quotes."""
    if ground_truth != prompt:
        return ground_truth
    parts = ground_truth.split('"')
    return parts[1] if len(parts) > 2 else ""


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about what is missing on this machine."""
    from importlib.util import find_spec

    return [] if find_spec("rapidocr") else ["ocr: not installed: pip install rapidocr onnxruntime"]


@cache
def _reader() -> Callable[[np.ndarray], tuple[str, ...]]:
    """A function from pixels uint8 [H, W, 3] to the lines of text in them, from top to bottom."""
    from rapidocr import RapidOCR

    # One thread, because several reward workers share the CPUs.
    engine = RapidOCR(
        params={
            "Global.log_level": "error",
            "Det.limit_type": "max",
            "Det.limit_side_len": LONGEST_SIDE,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        }
    )

    def read(pixels: np.ndarray) -> tuple[str, ...]:
        blue_first = pixels[..., ::-1]
        return engine(blue_first, use_cls=False).txts or ()

    return read
