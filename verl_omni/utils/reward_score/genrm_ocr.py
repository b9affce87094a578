"""The scorer `genrm_ocr` at its import path in the reference."""

from verl_omni.reward_loop.rewards import genrm_ocr
from verl_omni.utils.reward_score.judges import with_verls_arguments

compute_score_ocr = with_verls_arguments(genrm_ocr.compute_score)
