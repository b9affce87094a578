"""Scorer of the similarity of a sample's audio and its prompt (CLAP, arXiv:2211.06687)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import Device, ModelFolder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

MODALITY = "audio"
MODEL_CLASS = "verl_omni.reward_loop.models.clap_model:ClapModel"
WEIGHTS = "laion/larger_clap_general"


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    model_name_or_path: ModelFolder = WEIGHTS,
    device: Device = "cpu",
) -> list[float]:
    """Cosine of the sample's audio and prompt, from -1 to 1.

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
    from verl_omni.reward_loop.models.clap_model import ClapModel
    from verl_omni.reward_loop.models.clip_model import load_once, prompts_of

    prompts = prompts_of(extra_infos, "clap", "audio")
    audios = [_audio_of(info) for info in extra_infos]
    clap = load_once(ClapModel, model_name_or_path, device)
    return [float(cosine) for cosine in (clap.embed_audio(audios) * clap.embed_prompts(prompts)).sum(dim=1)]


def _audio_of(info: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """Mono audio float32 [T], and its rate in Hz."""
    from torch import Tensor

    audio = info.get("audio")
    rate = info.get("audio_sample_rate")
    if not isinstance(audio, Tensor) or not audio.numel() or not rate:
        raise ValueError(
            "clap compares audio with the prompt, and a sample's extra_info has no `audio` with `audio_sample_rate`"
        )
    return audio.detach().float().cpu().reshape(-1, audio.shape[-1]).mean(dim=0).numpy(), int(rate)
