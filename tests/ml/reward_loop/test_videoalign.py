"""The scorer videoalign, against the scores of its authors' code for the same tiny random model."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.reward_loop import tiny_videoalign as tiny
from tests.ml.reward_loop.tiny_videoalign import FPS, PROMPTS
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.models import clip_model, videoalign_model
from verl_omni.reward_loop.models.videoalign_model import TOKENS

pytestmark = pytest.mark.slow
# What VideoVLMRewardInference.reward of VideoAlign at 219ab9d gave (VQ, MQ, TA of each sample), by the outputs of the
# head, with the files and inputs of tiny_videoalign, with its own transformers 4.45.2 and peft 0.10.0, torch 2.13.0 on
# a CPU, in fp32, with sdpa in place of flash attention, and TEMPLATE in place of its text. With its own text, the
# scores of both were the same as well.
REFERENCE = {
    3: [
        (-2.669652, 0.641922, -0.754327),
        (-2.527539, 0.066546, -1.182824),
        (-0.902913, -3.047493, -0.135621),
    ],
    1: [
        (-2.669652, -2.249498, -3.042025),
        (-2.527539, 0.536930, -1.895574),
        (-0.902913, 1.193163, -1.068192),
    ],
}
TOLERANCE = 1e-4  # sums of fp32 in another order
# Names of transformers since 4.52.
NEWER = (
    (r"^base_model\.model\.visual\.", "base_model.model.model.visual."),
    (r"^base_model\.model\.model\.", "base_model.model.model.language_model."),
)
METRICS = ("visual_quality", "motion_quality", "text_alignment")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with `base`, `checkpoints` and `prompt_template.py`."""
    tiny.write_all(tmp_path)
    yield tmp_path
    clip_model._LOADED.clear()


def options(folder: Path) -> dict[str, Any]:
    return {
        "model_name_or_path": str(folder / "checkpoints"),
        "processor_name_or_path": str(folder / "base"),
        "template_path": str(folder / "prompt_template.py"),
        "video_fps": FPS,
    }


def rate(folder: Path, videos: Any = None, prompts: Any = None, **changes: Any) -> list[dict[str, float]]:
    videos = tiny.videos() if videos is None else videos
    infos = [{"prompt": prompt} for prompt in (PROMPTS if prompts is None else prompts)]
    settings = options(folder) | changes
    ratings: list[dict[str, float]] = rewards.get_scorer("videoalign")(
        ["t"] * len(infos), list(videos), [""] * len(infos), infos, **settings
    )
    return ratings


def numbers(found: list[dict[str, float]]) -> list[float]:
    return [rating[name] for rating in found for name in METRICS]


def flat(reference: Sequence[tuple[float, ...]]) -> list[float]:
    return [value for row in reference for value in row]


@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize("names", ["of the released file", "of newer versions"])
def test_the_numbers_are_those_of_the_authors_code(folder: Path, outputs: int, names: str) -> None:
    weights = tiny.make_weights(outputs)
    if names == "of newer versions":
        renamed = {}
        for name, tensor in weights.items():
            for pattern, replacement in NEWER:
                name, count = re.subn(pattern, replacement, name)
                if count:
                    break
            renamed[name] = tensor
        assert renamed.keys() != weights.keys()
        weights = renamed
    tiny.write_checkpoint(folder / "checkpoints", weights)
    ratings = rate(folder)
    assert numbers(ratings) == pytest.approx(flat(REFERENCE[outputs]), abs=TOLERANCE)
    assert [rating["score"] for rating in ratings] == pytest.approx(
        [sum(row) for row in REFERENCE[outputs]], abs=TOLERANCE
    )


def test_the_score_is_the_weighted_sum(folder: Path) -> None:
    ratings = rate(folder, vq_weight=0.5, mq_weight=2.0, ta_weight=0.0)
    assert numbers(ratings) == pytest.approx(flat(REFERENCE[3]), abs=TOLERANCE)
    assert [rating["score"] for rating in ratings] == pytest.approx(
        [0.5 * vq + 2 * mq for vq, mq, _ in REFERENCE[3]], abs=1e-3
    )
    none = {"vq_weight": 0.0, "mq_weight": 0.0, "ta_weight": 0.0}
    with pytest.raises(ValueError, match="vq_weight: is 0, as mq_weight and ta_weight are"):
        rate(folder, **none)
    assert rewards.conflicts("videoalign", none) != [] == rewards.conflicts("videoalign", {**none, "ta_weight": 1.0})


def test_without_means_and_deviations_the_numbers_are_the_heads(folder: Path) -> None:
    """As for a checkpoint of one's own training."""
    path = folder / "checkpoints" / "model_config.json"
    config = json.loads(path.read_text())
    standard = config.pop("inference_config")
    path.write_text(json.dumps(config))
    raw = [
        value * standard[f"{name}_std"] + standard[f"{name}_mean"]
        for row in REFERENCE[3]
        for name, value in zip(("VQ", "MQ", "TA"), row, strict=True)
    ]
    assert numbers(rate(folder)) == pytest.approx(raw, abs=5 * TOLERANCE)


def test_each_number_is_read_at_the_templates_token_whatever_the_prompt_has(folder: Path) -> None:
    """The prompt is between the second and the third token, so the third number alone depends on it."""
    ends = ["a red circle", "a blue square, long and thin and tall"]
    plain, *others = rate(folder, tiny.videos()[:1] * 3, ["a", *(f"{''.join(TOKENS)} {end}" for end in ends)])
    for changed in others:
        assert [changed[name] for name in METRICS[:2]] == pytest.approx([plain[name] for name in METRICS[:2]], abs=1e-5)
    differing = abs(others[0]["text_alignment"] - others[1]["text_alignment"])
    assert differing > 10 * TOLERANCE, "at the first token, the number would not depend on what follows"


def test_the_number_of_frames_follows_from_the_fps_of_the_video(folder: Path) -> None:
    video = tiny.videos()[:1]
    fast, slow = (rate(folder, video, PROMPTS[:1], video_fps=fps)[0] for fps in (8.0, 1.0))
    assert abs(fast["motion_quality"] - slow["motion_quality"]) > 10 * TOLERANCE


# From the authors' code: smart_nframes, and the indices of sample_type "uniform".
@pytest.mark.parametrize(
    ("frames", "video_fps", "expected"),
    [
        (2, 8.0, [0, 1]),
        (3, 8.0, [0, 2]),
        (5, 8.0, [0, 1, 3, 4]),
        (21, 8.0, [0, 4, 8, 12, 16, 20]),
        (81, 16.0, [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]),
        (41, 16.0, [0, 8, 16, 24, 32, 40]),
        (49, 8.0, [0, 4, 9, 13, 17, 22, 26, 31, 35, 39, 44, 48]),
    ],
)
def test_the_sampled_frames_are_those_of_the_authors_code(frames: int, video_fps: float, expected: list[int]) -> None:
    assert videoalign_model.sampled_frames(frames, video_fps, fps=2.0) == expected


@pytest.mark.parametrize(
    ("height", "width", "resized"), [(480, 832, (336, 588)), (64, 64, (336, 336)), (96, 301, (196, 588))]
)
def test_frames_are_resized_as_by_the_authors_code(height: int, width: int, resized: tuple[int, int]) -> None:
    frames = videoalign_model.resize(torch.full((2, 3, height, width), 200, dtype=torch.uint8), 200704)
    assert frames.shape == (2, 3, *resized)
    assert frames.dtype == torch.float32 and frames.unique().tolist() == [200.0]


def test_the_weights_keep_their_dtype_and_the_head_is_in_fp32(folder: Path) -> None:
    tiny.write_checkpoint(
        folder / "checkpoints", {name: weight.bfloat16() for name, weight in tiny.make_weights().items()}
    )
    assert numbers(rate(folder)) == pytest.approx(flat(REFERENCE[3]), abs=0.3)
    (model,) = clip_model._LOADED.values()
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.bfloat16}
    assert [head.dtype for head in model.heads] == [torch.float32]


def test_the_newest_checkpoint_is_read(folder: Path) -> None:
    tiny.write_checkpoint(folder / "checkpoints", {}, step=900)
    (folder / "checkpoints" / "checkpoint-99999").mkdir()
    assert numbers(rate(folder)) == pytest.approx(flat(REFERENCE[3]), abs=TOLERANCE)


def test_images_and_samples_without_a_prompt_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"takes videos \[T, 3, H, W\], and got an image \[3, 64, 64\]"):
        rate(folder, [tiny.videos()[0][0]], PROMPTS[:1])
    with pytest.raises(ValueError, match="videoalign rates motion: it takes videos of at least 2 frames, and got 1"):
        rate(folder, [tiny.videos()[0][:1]], PROMPTS[:1])
    with pytest.raises(ValueError, match="videoalign compares the video with its prompt"):
        rate(folder, tiny.videos()[:1], [None])


Q_PROJ = "base_model.model.model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_model.model.rm_head.weight": None}, "lacks rm_head.weight of the reward head; write the weights of V"),
        ({"base_model.model.rm_head.weight": torch.zeros(2, 16)}, "returns 2 numbers, expected 1 or 3"),
        ({"base_model.model.rm_head.weight": torch.zeros(3, 8)}, "has a head for a model of width 8, and the base "),
        ({f"{Q_PROJ}.base_layer.weight": None}, "lacks 1 weights of the base model .*layers.1.self_attn.q_proj.weight"),
        ({"base_model.model.model.embed_tokens.weight": None}, "lacks the embeddings of tokens"),
        (
            {f"{Q_PROJ}.lora_A.default.weight": None},
            r"q_proj.lora_A.default.weight with the shape None, expected \[2, 1",
        ),
        ({f"{Q_PROJ}.lora_B.default.weight": torch.zeros(16, 4)}, r"with the shape \[16, 4\], expected \[16, 2\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    weights = {name: weight for name, weight in (tiny.make_weights() | changes).items() if weight is not None}
    tiny.write_checkpoint(folder / "checkpoints", weights)
    with pytest.raises(ValueError, match=f"{re.escape(str(folder))}.*{message}"):
        rate(folder)


def test_an_adapter_that_the_configuration_does_not_have_is_refused(folder: Path) -> None:
    tiny.write_checkpoint(folder / "checkpoints", tiny.make_weights(), peft_lora_config={"lora_enable": False})
    with pytest.raises(ValueError, match=r"28 weights of the adapter that do not fit model_config.json"):
        rate(folder)


def test_another_base_model_is_refused(folder: Path) -> None:
    path = folder / "base" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"lacks 12 weights of the base model .*layers.2"):
        rate(folder)


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("data_config", {"prompt_template_type": "simple"}, "data_config.prompt_template_type: Input should be 'detai"),
        ("data_config", {"sample_type": "multi_pts"}, "data_config.sample_type: Input should be 'uniform'"),
        ("data_config", {"num_frames": 8}, "data_config.num_frames: Input should be null"),
        ("model_config", {"use_special_tokens": False}, "model_config.use_special_tokens: Input should be True"),
    ],
)
def test_a_model_that_was_trained_in_another_way_is_refused(
    folder: Path, part: str, values: dict[str, Any], message: str
) -> None:
    tiny.write_checkpoint(folder / "checkpoints", tiny.make_weights(), **{part: values})
    (problem,) = rewards.setting_problems("videoalign", options(folder))
    assert problem.startswith("model_name_or_path: ") and f"model_config.json is not supported: {message}" in problem


def test_what_is_missing_is_said_before_anything_starts(folder: Path) -> None:
    settings = options(folder)
    assert rewards.setting_problems("videoalign", settings) == []
    missing = {"model_name_or_path": "/no", "processor_name_or_path": "/no", "template_path": "/no.py"}
    assert rewards.setting_problems("videoalign", settings | missing) == [
        "model_name_or_path: /no/checkpoint-*/model.pth does not exist; write the folder of VideoReward, which has "
        "model_config.json and checkpoint-*/model.pth",
        "processor_name_or_path: /no/config.json does not exist; write the folder of Qwen2-VL",
        "template_path: no file /no.py; write prompt_template.py of https://github.com/KwaiVGI/VideoAlign",
    ]
    (problem,) = rewards.setting_problems("videoalign", {**settings, "video_fps": 0})
    assert problem.startswith("video_fps: ")
    for template in ("no tokens", tiny.TEMPLATE.replace("{text_prompt}", ""), "{text_prompt}" + tiny.TEMPLATE):
        tiny.write_template(folder / "prompt_template.py", template)
        (problem,) = rewards.setting_problems("videoalign", settings)
        assert (
            "has no text DETAILED_PROMPT_WITH_SPECIAL_TOKEN with <|VQ_reward|>, <|MQ_reward|>, {text_prompt}" in problem
        )
        with pytest.raises(FileNotFoundError, match="has no text DETAILED_PROMPT"):
            rate(folder)
