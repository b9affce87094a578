"""The scorer hpsv3, against the scores of the package hpsv3 for the same tiny random model."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.reward_loop import tiny_hpsv3 as tiny
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.models import clip_model, hpsv3_model

pytestmark = pytest.mark.slow
PROMPTS = ["a red circle", "a blue {square}", "two red circles, and a very long prompt " * 4, "a red circle"]
# What HPSv3RewardInferencer.reward of hpsv3 1.0.0 gave (first number of each sample) with the files and inputs of
# tiny_hpsv3, with its own transformers 4.45.2, torch 2.13.0 on a CPU, its configuration HPSv3_7B.yaml except for
# torch_dtype float32 and bf16 off, and BEFORE and AFTER in place of its question. With its question, the scores of both
# were the same as well: 6.12312, 5.48588, 4.89102, 5.25251.
REFERENCE = [7.380616664886475, 7.170423984527588, 7.172752380371094, 6.647058010101318]
TOLERANCE = 1e-4  # sums of fp32 in another order gave up to 2e-5
# Names of transformers since 4.52.
NEWER = ((r"^visual\.", "model.visual."), (r"^model\.(?!visual)", "model.language_model."))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `base`, `HPSv3.safetensors`, and a package hpsv3 that Python finds."""
    tiny.write_base(tmp_path / "base")
    tiny.write_weights(tmp_path / "HPSv3.safetensors", tiny.make_weights())
    monkeypatch.syspath_prepend(str(tiny.write_package(tmp_path / "packages")))
    yield tmp_path
    clip_model._LOADED.clear()


def score(folder: Path, pictures: Any = None, prompts: Any = None, **options: str) -> list[float]:
    pictures = tiny.pictures() if pictures is None else pictures
    prompts = PROMPTS if prompts is None else prompts
    settings = {"model_name_or_path": str(folder), "processor_name_or_path": str(folder / "base"), **options}
    infos = [{"prompt": prompt} for prompt in prompts]
    return rewards.get_scorer("hpsv3")(["t"] * len(infos), list(pictures), [""] * len(infos), infos, **settings)


def spoil(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    tiny.write_weights(folder / "HPSv3.safetensors", weights)


@pytest.mark.parametrize("names", ["of the released file", "of newer versions"])
def test_the_score_is_that_of_the_package(folder: Path, names: str) -> None:
    if names == "of newer versions":
        renamed = {}
        for name, tensor in tiny.make_weights().items():
            for pattern, replacement in NEWER:
                name = re.sub(pattern, replacement, name)
            renamed[name] = tensor
        spoil(folder, renamed)
    assert score(folder) == pytest.approx(REFERENCE, abs=TOLERANCE)
    scaled: Any = {"score_scale": 0.1}
    assert score(folder, **scaled) == pytest.approx([value / 10 for value in REFERENCE], abs=TOLERANCE)


def test_a_score_depends_on_image_and_prompt_and_not_on_the_batch(folder: Path) -> None:
    pictures = tiny.pictures()
    alone = [score(folder, [picture], [prompt])[0] for picture, prompt in zip(pictures, PROMPTS, strict=True)]
    assert alone == pytest.approx(REFERENCE, abs=TOLERANCE)
    other_prompt, other_picture = score(folder, [pictures[0], pictures[1]], [PROMPTS[1], PROMPTS[0]])
    assert min(abs(other_prompt - alone[0]), abs(other_picture - alone[0])) > 50 * TOLERANCE


def test_a_prompt_that_has_the_reward_token_is_scored_where_the_question_ends(folder: Path) -> None:
    circle, square = score(folder, tiny.pictures()[:1] * 2, ["<|Reward|> a red circle", "<|Reward|> a blue square"])
    assert abs(circle - square) > 50 * TOLERANCE, "at the first token, the scores would not depend on what follows"


def test_the_weights_keep_their_dtype_and_the_head_is_in_fp32(folder: Path) -> None:
    spoil(folder, {name: tensor.bfloat16() for name, tensor in tiny.make_weights().items()})
    assert score(folder) == pytest.approx(REFERENCE, abs=0.3)
    (model,) = clip_model._LOADED.values()
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for layer in model.head for parameter in layer} == {torch.float32}


def test_a_file_of_weights_may_be_named(folder: Path) -> None:
    scored = score(folder, model_name_or_path=str(folder / "HPSv3.safetensors"))
    assert scored == pytest.approx(REFERENCE, abs=TOLERANCE)


@pytest.mark.parametrize(("height", "width", "resized"), [(512, 512, (448, 448)), (32, 32, (448, 448))])
def test_an_image_is_resized_to_the_number_of_pixels_that_the_model_knows(
    height: int, width: int, resized: tuple[int, int]
) -> None:
    assert hpsv3_model.resize(torch.zeros(3, height, width, dtype=torch.uint8)).size == resized


def test_the_score_of_a_video_is_the_mean_of_its_frames(folder: Path) -> None:
    frames = [tiny.pictures()[0], 255 - tiny.pictures()[0]]
    first, second = score(folder, frames, [PROMPTS[0]] * 2)
    assert first != pytest.approx(second, abs=1e-3)
    scored = score(folder, [torch.stack(frames)], PROMPTS[:1])
    assert scored == pytest.approx([(first + second) / 2], abs=1e-5)


def test_samples_without_a_prompt_and_narrow_images_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="hpsv3 compares the image with its prompt"):
        score(folder, tiny.pictures()[:1], [None])
    with pytest.raises(ValueError, match="aspect ratio must be smaller than 200"):
        score(folder, [torch.zeros(3, 2, 600, dtype=torch.uint8)], PROMPTS[:1])


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("rm_head.3.bias", 0, r"HPSv3.safetensors lacks rm_head.3.bias of the reward head; write the weigh"),
        ("model.layers.1.mlp.up_proj.weight", 0, r"lacks 1 weights of the base model .*layers.1.mlp.up_proj.weight; w"),
        ("model.embed_tokens.weight", 263, r"has embeddings of 263 tokens, and the tokenizer of .* has 264; write the"),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder: Path, name: str, rows: int, message: str) -> None:
    weights = tiny.make_weights()
    kept = weights.pop(name)[:rows]
    spoil(folder, weights | ({name: kept} if rows else {}))
    with pytest.raises(ValueError, match=message):
        score(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "has a model of type 'llama', not 'qwen2_vl'"),
        (
            {"hidden_size": 32},
            "has a head for a model of width 16, and the base model .* has the width 32; write the base",
        ),
        (
            {"intermediate_size": 40},
            r"has other shapes of 6 weights of the base model .*such as language_model.layers.0.mlp.down_proj",
        ),
        (
            {"num_hidden_layers": 3},
            r"lacks 12 weights of the base model .*layers.2.*; write the base model that it was",
        ),
    ],
)
def test_another_base_model_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    path = folder / "base" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        score(folder)


def test_what_is_missing_is_said_before_anything_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model_name_or_path": str(folder), "processor_name_or_path": str(folder / "base")}
    assert rewards.setting_problems("hpsv3", settings) == []
    assert rewards.setting_problems("hpsv3", {"model_name_or_path": "/no", "processor_name_or_path": "/no"}) == [
        "model_name_or_path: /no does not exist; write the folder with HPSv3.safetensors, or that file",
        "processor_name_or_path: /no/config.json does not exist; write the folder of Qwen2-VL",
    ]
    (problem,) = rewards.setting_problems("hpsv3", {**settings, "device": "gpu"})
    assert problem.startswith("device: ")
    texts = folder / "packages/hpsv3/dataset/data_collator_qwen.py"
    texts.write_text(texts.read_text().replace("INSTRUCTION", "OTHER"))
    (problem,) = rewards.setting_problems("hpsv3", settings)
    assert problem == f"{texts} has no question with {{text_prompt}} and <|Reward|>; 1.0.0 of hpsv3 has it"
    monkeypatch.undo()
    (problem,) = rewards.setting_problems("hpsv3", settings)
    assert problem == (
        "model_name_or_path: needs the question in the package hpsv3; install it without its requirements: "
        "pip install --no-deps hpsv3"
    )
    with pytest.raises(FileNotFoundError, match="pip install --no-deps hpsv3"):
        score(folder)
