"""The scorers hpsv2 and image_reward, against the scores of their packages for the same tiny random models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.ml.reward_loop import tiny_preference_models as tiny
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.models import clip_model

# What the packages gave for the files and inputs of tiny_preference_models, with torch 2.13.0 on a CPU:
# - hpsv2 1.2.0: its open_clip.model.CLIP, and its image_transform with resize_longest_max; the prompts' token ids came
#   from the tiny tokenizer, whose end of a text got the largest id, where open_clip looks for it;
# - image-reward 1.5 with transformers 4.33.3 and timm 0.6.13: ImageReward.score, with encoders of the tiny sizes.
REFERENCE = {
    "hpsv2": [-0.1587435007095337, -0.034215062856674194, -0.4688258767127991, 0.2151721715927124],
    "image_reward": [7.615664482116699, 0.07889826595783234, 3.3901312351226807, 7.434750080108643],
}
TOLERANCE = 2e-5  # sums of fp32 in another order gave up to 3e-6
FILES = {"hpsv2": "HPS_v2.1_compressed.pt", "image_reward": "ImageReward.pt"}
NAMES = sorted(REFERENCE)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Iterator[Path]:
    {"hpsv2": tiny.write_hpsv2, "image_reward": tiny.write_image_reward}[name](tmp_path)
    yield tmp_path
    clip_model._LOADED.clear()


def score(name: str, folder: Path, pictures: Any = None, prompts: Any = None, **options: Any) -> list[float]:
    pictures = tiny.pictures() if pictures is None else pictures
    prompts = tiny.PROMPTS if prompts is None else prompts
    settings = {"model_name_or_path": str(folder), "processor_name_or_path": str(folder / "base"), **options}
    infos = [{"prompt": prompt} for prompt in prompts]
    return rewards.get_scorer(name)(["t"] * len(infos), list(pictures), [""] * len(infos), infos, **settings)


def spoil(folder: Path, name: str, weight: str, value: torch.Tensor | None) -> None:
    """Replace a weight of the file, or remove it."""
    path = folder / FILES[name]
    read = torch.load(path, weights_only=True)
    weights = read.get("state_dict", read)
    weights.pop(weight) if value is None else weights.update({weight: value})
    torch.save(read, path)


def test_the_score_is_that_of_the_package(name: str, folder: Path) -> None:
    assert score(name, folder) == pytest.approx(REFERENCE[name], abs=TOLERANCE)
    scaled = [100 * value for value in REFERENCE[name]]
    assert score(name, folder, score_scale=100.0) == pytest.approx(scaled, abs=100 * TOLERANCE)


def test_a_score_does_not_depend_on_the_batch_and_depends_on_the_prompt(name: str, folder: Path) -> None:
    alone = [
        score(name, folder, [picture], [prompt])[0]
        for picture, prompt in zip(tiny.pictures(), tiny.PROMPTS, strict=True)
    ]
    assert alone == pytest.approx(REFERENCE[name], abs=TOLERANCE)
    (of_other_prompt,) = score(name, folder, tiny.pictures()[:1], tiny.PROMPTS[1:2])
    assert abs(of_other_prompt - alone[0]) > 50 * TOLERANCE


def test_the_score_of_a_video_is_the_mean_of_its_frames(name: str, folder: Path) -> None:
    frames = [tiny.pictures()[0], 255 - tiny.pictures()[0]]
    first, second = score(name, folder, frames, tiny.PROMPTS[:1] * 2)
    assert abs(first - second) > 50 * TOLERANCE
    scored = score(name, folder, [torch.stack(frames)], tiny.PROMPTS[:1])
    assert scored == pytest.approx([(first + second) / 2], abs=TOLERANCE)


def test_a_file_of_weights_may_be_named_and_be_of_safetensors(name: str, folder: Path) -> None:
    read = torch.load(folder / FILES[name], weights_only=True)
    (folder / FILES[name]).unlink()
    save_file(read.get("state_dict", read), folder / "weights.safetensors")
    scored = score(name, folder, model_name_or_path=str(folder / "weights.safetensors"))
    assert scored == pytest.approx(REFERENCE[name], abs=TOLERANCE)


def test_samples_without_a_prompt_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} compares the image with its prompt"):
        score(name, folder, tiny.pictures()[:1], [None])


BIASES = {"hpsv2": "visual.ln_post.bias", "image_reward": "mlp.layers.7.bias"}


def test_weights_that_lack_a_tensor_or_have_another_shape_are_refused(name: str, folder: Path) -> None:
    spoil(folder, name, BIASES[name], torch.zeros(3))
    with pytest.raises(ValueError, match=r"has \S+bias with the shape \[3\], expected \[\d+\]; write the weights of"):
        score(name, folder)
    spoil(folder, name, BIASES[name], None)
    with pytest.raises(ValueError, match=r"lacks the weight \S+bias; write the weights of"):
        score(name, folder)


@pytest.mark.parametrize("name", ["image_reward"], indirect=True)
def test_weights_of_another_model_are_refused(name: str, folder: Path) -> None:
    spoil(folder, name, "blip.visual_encoder.pos_embed", None)
    with pytest.raises(
        ValueError, match=r"lacks the weight vision.embeddings.position_embedding; write the weights of"
    ):
        score(name, folder)


def test_what_is_missing_is_said_before_anything_starts(name: str, folder: Path) -> None:
    settings = {"model_name_or_path": str(folder), "processor_name_or_path": str(folder / "base")}
    assert rewards.setting_problems(name, settings) == []
    weights, processor = rewards.setting_problems(name, {"model_name_or_path": "/no", "processor_name_or_path": "/no"})
    assert weights == (f"model_name_or_path: /no does not exist; write the folder with {FILES[name]}, or that file")
    assert processor.startswith("processor_name_or_path: /no/")
    (problem,) = rewards.setting_problems(name, {**settings, "device": "gpu"})
    assert problem.startswith("device: ")
