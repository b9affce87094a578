"""PURE: the reference's modules of scorers, and the scorers here that run instead of them."""

from typing import Any

# Its modules: the name here, and its function there, None if that is not known. Those that are not available here
# (`rewards.UNAVAILABLE`) are refused with the reason.
PUBLISHED: dict[str, tuple[str, str | None]] = {
    "choice_reward": ("choice", "compute_score"),
    "clap": ("clap", "compute_score"),
    "genrm_ocr": ("genrm_ocr", "compute_score_ocr"),
    "hpsv3_reward": ("hpsv3", "compute_score"),
    "http_scorer_client": ("http", "compute_score"),
    "imagebind": ("imagebind", "compute_score"),
    "jpeg_compressibility": ("jpeg_compressibility", "compute_score"),
    "latent_http": ("latent_http", "compute_score"),
    "latent_http_scorer_client": ("latent_http", "compute_score"),
    "pickscore_reward": ("pickscore", "compute_score_pickscore"),
    "unified_reward": ("unified_reward", "compute_score_unified_reward"),
    "videoalign_native": ("videoalign_native", None),
}
# Settings that have another name here.
RENAMED = {"hpsv3": {"reward_scale": "score_scale"}}
SERVER_SETTINGS = {"server_url": "url"}  # of the scorer http
RETRIES = "max_retries"  # attempts after the first; the scorer http has `attempts`
# Settings of ours that give its scorer. The mean of its PickScore is 0.76 for random images (verl-omni#346), as with
# Flow-GRPO's division by 26; without one it would be 20.
IMPLIED: dict[str, dict[str, Any]] = {"http": {"protocol": "pickle"}, "pickscore": {"score_scale": 1 / 26}}
