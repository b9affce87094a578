"""The scorer of audio, against its formula in float64: a tiny CLAP model with random weights, made here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, CLIPTokenizer
from verl import DataProto

from tests.ml.reward_loop.spoiled_models import of_type, without_weight
from verl_omni.models.text import clip_tokenizer
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.reward_manager import VisualRewardManager

pytestmark = pytest.mark.slow
# Hz, seconds, tokens
RATE = 8000
HEARD = 1
LENGTH = 10
PROMPTS = ["a red circle", "a blue square", "two red circle", "a red circle"]
PICTURE = torch.zeros(3, 8, 8, dtype=torch.uint8)


def tone(hertz: float, rate: int = RATE, seconds: float = HEARD) -> torch.Tensor:
    """Mono audio: one frequency, louder towards the end."""
    time = torch.arange(int(rate * seconds)) / rate
    return torch.sin(2 * torch.pi * hertz * time) * (0.2 + 0.8 * time / seconds)


AUDIOS = [tone(200), tone(900), tone(3000), tone(200) + tone(3000)]
INFOS = [
    {"prompt": prompt, "audio": audio, "audio_sample_rate": RATE} for prompt, audio in zip(PROMPTS, AUDIOS, strict=True)
]


@pytest.fixture(scope="module", params=["rand_trunc", "fusion"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLAP model with its processor, of both kinds that are released."""
    path = tmp_path_factory.mktemp("clap")
    fusion = request.param == "fusion"
    tokenizer = clip_tokenizer(["a", "red", "blue", "circle", "square", "two"], LENGTH)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos")}
    config = ClapConfig(
        text_config={**sizes, **special, "vocab_size": len(tokenizer), "max_position_embeddings": LENGTH + 2},
        audio_config={
            "patch_embeds_hidden_size": 4,
            "hidden_size": 32,
            "depths": [1] * 4,
            "num_attention_heads": [1, 1, 2, 2],
            "window_size": 4,
            "spec_size": 128,
            "num_mel_bins": 32,
            "num_hidden_layers": 4,
            "enable_fusion": fusion,
            "fusion_type": "aff_2d" if fusion else None,
            "aff_block_r": 1,
        },
        projection_dim=8,
    )
    torch.manual_seed(3)
    model = ClapModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.ndim > 1 else None
    model.save_pretrained(path)
    ClapFeatureExtractor(
        feature_size=32,
        sampling_rate=RATE,
        hop_length=80,
        max_length_s=HEARD,
        fft_window_size=256,
        frequency_max=4000,
        truncation=request.param,
    ).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def score(folder: Path, infos: Any = None, **options: Any) -> list[float]:
    infos = INFOS if infos is None else infos
    settings = {"model_name_or_path": str(folder), **options}
    scored: list[float] = rewards.get_scorer("clap")(
        ["t"] * len(infos), [PICTURE] * len(infos), [""] * len(infos), infos, **settings
    )
    return scored


def test_the_score_is_the_cosine_of_audio_and_prompt(folder: Path) -> None:
    model = ClapModel.from_pretrained(folder).double().eval()
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    extractor = ClapFeatureExtractor.from_pretrained(folder)
    wanted = []
    with torch.no_grad():
        for prompt, audio in zip(PROMPTS, AUDIOS, strict=True):
            mel, _ = extractor._get_input_mel(
                audio.double().numpy(), extractor.nb_max_samples, extractor.truncation, extractor.padding
            )
            heard = model.audio_model(
                input_features=torch.tensor(mel)[None].double(), is_longer=torch.zeros(1, 1, dtype=torch.bool)
            ).pooler_output
            read = model.text_model(torch.tensor([tokenizer(prompt).input_ids])).pooler_output
            of_audio = model.audio_projection(heard)[0]
            of_text = model.text_projection(read)[0]
            wanted.append(float(of_audio @ of_text / of_audio.norm() / of_text.norm()))
    assert np.std(wanted) > 0.01, "the model tells these samples apart"
    assert score(folder) == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_a_score_depends_neither_on_the_batch_nor_on_chance(folder: Path) -> None:
    alone = [score(folder, [info])[0] for info in INFOS]
    assert score(folder) == pytest.approx(alone, abs=1e-5)
    longer = [{**info, "audio": torch.cat([info["audio"], tone(1500, seconds=3)])} for info in INFOS]
    for _ in range(3):
        assert score(folder, longer) == pytest.approx(alone, abs=1e-5), "what the model does not hear does not count"


def test_channels_are_averaged_and_rates_are_converted(folder: Path) -> None:
    stereo = {**INFOS[0], "audio": torch.stack([2 * AUDIOS[0], torch.zeros_like(AUDIOS[0])])}
    fast = {**INFOS[0], "audio": tone(200, rate=32000), "audio_sample_rate": 32000}
    (plain,) = score(folder, INFOS[:1])
    assert score(folder, [stereo, fast]) == [pytest.approx(plain, abs=1e-5), pytest.approx(plain, abs=0.02)]
    slowed = {**fast, "audio_sample_rate": RATE}
    assert abs(score(folder, [slowed])[0] - plain) > 0.02, "the rate is used"


async def test_a_manager_gives_the_scorer_the_audio_of_the_sample(
    folder: Path, settings: Callable[..., DictConfig], sample: Callable[..., DataProto]
) -> None:
    config = settings(scorer="clap", scorer_kwargs={"model_name_or_path": str(folder)})
    result = await VisualRewardManager(config, None, None).run_single(sample(PICTURE, extra_info=INFOS[1]))
    assert result["reward_score"] == pytest.approx(score(folder)[1], abs=1e-5)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({}, "clap compares the audio with its prompt, and a sample's extra_info has no text `prompt`"),
        ({"prompt": "a"}, "has no `audio` with `audio_sample_rate`"),
        ({"prompt": "a", "audio": AUDIOS[0]}, "has no `audio` with `audio_sample_rate`"),
        ({"prompt": "a", "audio": torch.zeros(0), "audio_sample_rate": RATE}, "has no `audio` with"),
    ],
)
def test_a_sample_without_audio_or_prompt_is_refused(info: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(Path("none"), [info])


def test_a_model_that_lacks_weights_or_is_of_another_type_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lacks 1 weights, such as audio_projection.linear1.weight"):
        score(without_weight(folder, tmp_path / "lacking", "audio_projection.linear1.weight"))
    with pytest.raises(ValueError, match="has a model of type 'clip', not 'clap'"):
        score(of_type(folder, tmp_path / "other", "clip"))
    assert rewards.setting_problems("clap", {"model_name_or_path": str(folder)}) == []
    (missing,) = rewards.setting_problems("clap", {"model_name_or_path": "/none"})
    assert missing == "model_name_or_path: /none/config.json does not exist; write the folder of a CLAP model"
