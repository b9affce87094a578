"""CLAP models for scoring: embeddings of audio and prompts (arXiv:2211.06687), loaded once per process."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.reward_loop.models.clip_model import CONFIG, ScoringModel, load_scoring_model, unit
from verl_omni.reward_loop.models.weight_files import failures, folder_with
from verl_omni.reward_loop.setting_types import MODEL
from verl_omni.utils.model_folder import model_folder


@dataclass(frozen=True, slots=True)
class ClapModel(ScoringModel):
    """A CLAP model with its feature extractor, loaded from (model, device)."""

    extractor: Any

    @classmethod
    @override
    def load(cls, *source: str) -> Self:
        from transformers import AutoTokenizer, ClapFeatureExtractor
        from transformers import ClapModel as Clap

        model, device = source
        folder = model_folder(model, MODEL)
        return cls(
            model=load_scoring_model(Clap, "clap", folder, device),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            device=torch.device(device),
            extractor=ClapFeatureExtractor.from_pretrained(folder),
        )

    @classmethod
    @override
    def problems(cls, *source: str) -> list[str]:
        return failures(lambda: folder_with(*source, MODEL, "a CLAP model", CONFIG))

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
        heard = [_resample(audio, own_rate, rate)[: self.extractor.nb_max_samples] for audio, own_rate in audios]
        inputs = self.extractor(heard, sampling_rate=rate, return_tensors="pt").to(self.device)
        # Nothing is longer than what the model hears. The extractor marks a random sample where nothing is.
        inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
        return unit(self.model.get_audio_features(**inputs).pooler_output)


def _resample(audio: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return audio
    from scipy.signal import resample_poly

    common = gcd(rate, wanted)
    resampled: np.ndarray = resample_poly(audio, wanted // common, rate // common)
    return resampled
