"""Scorer of the similarity of a sample's audio and its prompt (CLAP, arXiv:2211.06687)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.clip_model import (
    MODEL,
    ScoringModel,
    clip_problems,
    load_once,
    load_scoring_model,
    prompts_of,
    unit,
)
from verl_omni.utils.model_folder import model_folder

WEIGHTS = "laion/larger_clap_general"


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: str = WEIGHTS,
    device: str = "cpu",
) -> list[float]:
    """Cosine of audio and prompt, in [-1, 1], for each sample; the images are not looked at.

    The audio is `extra_info["audio"]`, a tensor of floats [..., T] with `audio_sample_rate` in Hz, as an engine
    returns it with a video. Its channels are averaged, it is resampled to the model's rate, and cut after the seconds
    that the model hears (10).

    Args:
        model_name_or_path: a CLAP model with its processor, a folder or a repository in the hub cache.

    Raises:
        FileNotFoundError: the model does not exist.
        ValueError: it is no CLAP model with all its weights, the device cannot be used, or a sample has no audio or no
            prompt.
    """
    prompts = prompts_of(extra_infos, "clap", "audio")
    audios = [_audio_of(info) for info in extra_infos]
    clap = load_once(ClapModel, model_name_or_path, device)
    return [float(each) for each in (clap.embed_audio(audios) * clap.embed_prompts(prompts)).sum(dim=1)]


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about what is missing on this machine."""
    return clip_problems(given, {MODEL: WEIGHTS}, "CLAP")


@dataclass(frozen=True, slots=True)
class ClapModel(ScoringModel):
    """A CLAP model with its feature extractor, loaded from (model, device)."""

    extractor: Any

    @classmethod
    @override
    def load(cls, *source: str) -> ClapModel:
        from transformers import AutoTokenizer, ClapFeatureExtractor
        from transformers import ClapModel as Clap

        model, device = source
        if problems := clip_problems({"device": device}, {MODEL: model}, "CLAP"):
            raise FileNotFoundError("; ".join(problems))
        folder = model_folder(model, MODEL)
        return cls(
            model=load_scoring_model(Clap, "clap", folder, device),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            device=torch.device(device),
            extractor=ClapFeatureExtractor.from_pretrained(folder),
        )

    @property
    @override
    def longest_prompt(self) -> int:
        text = self.model.config.text_config
        # RoBERTa numbers positions from the padding token's id + 1.
        return int(text.max_position_embeddings - text.pad_token_id - 1)

    @torch.inference_mode()
    def embed_audio(self, audios: Sequence[tuple[np.ndarray, int]]) -> Tensor:
        """Embeddings of length 1, fp32 [B, width] on the CPU, of mono audio [T] with its rate in Hz."""
        rate = int(self.extractor.sampling_rate)
        heard = [_resample(audio, own, rate)[: self.extractor.nb_max_samples] for audio, own in audios]
        inputs = self.extractor(heard, sampling_rate=rate, return_tensors="pt").to(self.device)
        # Nothing is longer than what the model hears. The extractor marks a random sample where nothing is.
        inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
        return unit(self.model.get_audio_features(**inputs).pooler_output)


def _audio_of(info: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """Mono audio float32 [T], and its rate in Hz."""
    audio = info.get("audio")
    rate = info.get("audio_sample_rate")
    if not isinstance(audio, Tensor) or not audio.numel() or not rate:
        raise ValueError(
            "clap compares audio with the prompt, and a sample's extra_info has no `audio` with `audio_sample_rate`"
        )
    return audio.detach().float().cpu().reshape(-1, audio.shape[-1]).mean(dim=0).numpy(), int(rate)


def _resample(audio: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return audio
    from scipy.signal import resample_poly

    common = gcd(rate, wanted)
    found: np.ndarray = resample_poly(audio, wanted // common, rate // common)
    return found
