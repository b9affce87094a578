"""The scorer `genrm_ocr` at its import path in the reference."""

from verl_omni.reward_loop.rewards.genrm_ocr import compute_score as compute_score_ocr

__all__ = ["compute_score_ocr"]
