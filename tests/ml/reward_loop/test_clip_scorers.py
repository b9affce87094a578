"""The scorers with a CLIP model, against their formulas in float64: a tiny model with random weights, made here."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer
from verl import DataProto

from tests.ml.reward_loop.spoiled_models import of_type, without_weight
from verl_omni.models.text import clip_tokenizer
from verl_omni.reward_loop import rewards, video_frames
from verl_omni.reward_loop.models import clip_model
from verl_omni.reward_loop.reward_manager import MultiVisualRewardManager

WIDTH = 8
SIZE = 32
LENGTH = 6
SEED = 7
PROMPTS = ["a red circle", "a blue square", "two red circle", "a red circle", "a red square a red square a red square"]
PICTURES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, SIZE, SIZE), dtype=np.uint8))
INFOS = [{"prompt": prompt} for prompt in PROMPTS]
HEADS = {"linear": (WIDTH, 1), "mlp": (WIDTH, 6, 4, 1)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip")
    write_clip(path)
    return path


def write_clip(path: Path) -> None:
    """A CLIP model with its processor, as `save_pretrained` writes it."""
    tokenizer = clip_tokenizer(["a", "red", "blue", "circle", "square", "two"], LENGTH)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = CLIPConfig(
        text_config={**sizes, **special, "vocab_size": len(tokenizer), "max_position_embeddings": LENGTH},
        vision_config={**sizes, "image_size": SIZE, "patch_size": 16},
        projection_dim=WIDTH,
    )
    torch.manual_seed(SEED)
    model = CLIPModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4) if parameter.ndim > 1 else None
    model.save_pretrained(path)
    size = {"height": SIZE, "width": SIZE}
    CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=size).save_pretrained(path)
    tokenizer.save_pretrained(path)


@pytest.fixture(scope="module")
def embeddings(folder: Path) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Embeddings of images and prompts in float64, one at a time, and the logit scale."""
    model = CLIPModel.from_pretrained(folder).double().eval()
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073], dtype=torch.float64)[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711], dtype=torch.float64)[:, None, None]
    images = []
    texts = []
    with torch.no_grad():
        for picture, prompt in zip(PICTURES, PROMPTS, strict=True):
            seen = model.vision_model(((picture.double() / 255 - mean) / std)[None]).pooler_output
            images.append(model.visual_projection(seen)[0])
            ids = tokenizer(prompt).input_ids
            ids = [*ids[: LENGTH - 1], tokenizer.eos_token_id] if len(ids) > LENGTH else ids
            read = model.text_model(torch.tensor([ids])).pooler_output
            texts.append(model.text_projection(read)[0])
    return torch.stack(images), torch.stack(texts), math.exp(model.logit_scale.item())


@pytest.fixture
def head(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The file of a predictor, with names as LAION's files have them, and its layers."""
    kind, suffix = request.param
    generator = torch.Generator().manual_seed(1)
    layers = []
    weights = {}
    for number, (inputs, outputs) in enumerate(zip(HEADS[kind], HEADS[kind][1:], strict=False)):
        layer = torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator)
        layers.append(layer)
        name = "" if kind == "linear" else f"layers.{4 * number}."  # as text, 12 sorts before 4
        weights |= {f"{name}weight": layer[0], f"{name}bias": layer[1]}
    path = tmp_path / f"head{suffix}"
    save_file(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    return path, layers


def score(name: str, folder: Path, pictures: Any = None, infos: Any = None, **options: Any) -> list[float]:
    pictures = PICTURES if pictures is None else pictures
    infos = INFOS if infos is None else infos
    settings = {"model_name_or_path": str(folder), **options}
    if name == "pickscore":
        settings.setdefault("processor_name_or_path", str(folder))
    return rewards.get_scorer(name)(["t"] * len(infos), list(pictures), [""] * len(infos), infos, **settings)


def cosines(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    return (images * texts).sum(1) / (images.norm(dim=1) * texts.norm(dim=1))


def test_pickscore_is_the_scaled_cosine(folder: Path, embeddings: tuple[torch.Tensor, torch.Tensor, float]) -> None:
    images, texts, scale = embeddings
    wanted = scale * cosines(images, texts)
    assert scale > 10
    assert wanted.std() > 1, "the model tells these samples apart"
    assert score("pickscore", folder) == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-4)


def test_the_clip_score_is_the_positive_cosine_times_two_and_a_half(
    folder: Path, embeddings: tuple[torch.Tensor, torch.Tensor, float]
) -> None:
    images, texts, _ = embeddings
    wanted = 2.5 * cosines(images, texts).clamp(min=0)
    assert 0 < (wanted == 0).sum() < len(wanted), "both sides of the bound are tested"
    assert score("clip_score", folder) == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-5)


KINDS = [("linear", ".pth"), ("mlp", ".pth"), ("mlp", ".safetensors")]


@pytest.mark.parametrize("head", KINDS, indirect=True, ids="".join)
def test_the_aesthetic_score_is_the_heads(
    folder: Path, embeddings: tuple[torch.Tensor, torch.Tensor, float], head: Any
) -> None:
    path, layers = head
    activations = embeddings[0] / embeddings[0].norm(dim=1, keepdim=True)
    for weight, bias in layers:
        activations = activations @ weight.double().T + bias.double()
    assert activations.std() > 0.1
    assert score("aesthetic", folder, head_path=str(path)) == pytest.approx(
        activations[:, 0].tolist(), rel=1e-4, abs=1e-4
    )


def test_a_score_does_not_depend_on_the_batch(folder: Path) -> None:
    sizes = [*PICTURES[:2], PICTURES[2].repeat(1, 2, 3), PICTURES[3].repeat(1, 1, 2), PICTURES[4]]
    together = score("pickscore", folder, sizes)
    alone = [score("pickscore", folder, [picture], [info])[0] for picture, info in zip(sizes, INFOS, strict=True)]
    assert together == pytest.approx(alone, abs=1e-4)


async def test_a_manager_scores_what_waits_in_one_call_of_one_model(
    folder: Path, settings: Callable[..., DictConfig], sample: Callable[..., DataProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    embed = clip_model.ClipModel.embed_images

    def counted(self: Any, images: Any) -> torch.Tensor:
        sizes.append(len(images))
        return embed(self, images)

    monkeypatch.setattr(clip_model.ClipModel, "embed_images", counted)
    clip_model._LOADED.clear()
    pick = {"model_name_or_path": str(folder), "processor_name_or_path": str(folder)}
    functions = {"pickscore": pick, "clip": {"name": "clip_score", "model_name_or_path": str(folder), "weight": 2}}
    manager = MultiVisualRewardManager(settings(reward_functions=functions), None, None)
    rows = [sample(picture, extra_info=info) for picture, info in zip(PICTURES, INFOS, strict=True)]
    results = await asyncio.gather(*[manager.run_single(row) for row in rows])
    assert [result["reward_extra_info"]["reward/pickscore"] for result in results] == pytest.approx(
        score("pickscore", folder), abs=1e-4
    )
    assert len(clip_model._LOADED) == 1
    assert max(sizes[:-1]) == 4, "the first sample alone, then all that waited"


@pytest.mark.parametrize("head", KINDS[:1], indirect=True, ids="".join)
@pytest.mark.parametrize("at_once", [2, 32])
def test_the_score_of_a_video_is_the_mean_of_its_frames(
    folder: Path, head: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_frames, "AT_ONCE", at_once)
    samples = [PICTURES[0], PICTURES[1:4], PICTURES[4]]
    infos = [INFOS[0], INFOS[1], INFOS[3]]
    for name, more in (("pickscore", {}), ("clip_score", {}), ("aesthetic", {"head_path": str(head[0])})):
        first, *frames, last = score(name, folder, PICTURES, [INFOS[0], *[INFOS[1]] * 3, INFOS[3]], **more)
        assert np.std(frames) > 1e-3
        wanted = [first, np.mean(frames), last]
        assert score(name, folder, samples, infos, **more) == pytest.approx(wanted, abs=1e-4), name


def test_samples_without_a_prompt_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="pickscore compares the image with its prompt"):
        score("pickscore", folder, PICTURES[:1], [{}])


def test_a_model_that_lacks_weights_or_is_of_another_type_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lacks 1 weights, such as visual_projection.weight"):
        score("clip_score", without_weight(folder, tmp_path / "lacking", "visual_projection.weight"))
    with pytest.raises(ValueError, match="has a model of type 'bert', not 'clip'"):
        score("clip_score", of_type(folder, tmp_path / "other", "bert"))


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"device: this reward worker cannot use 'cuda:77' .*write cpu, or serve"):
        score("clip_score", folder, device="cuda:77")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"weight": (1, WIDTH + 1), "bias": (1,)}, f"no chain of linear layers from {WIDTH} numbers to 1"),
        ({"weight": (2, WIDTH), "bias": (2,)}, "returns 2 numbers, expected 1"),
        ({"weight": (1, WIDTH)}, "no chain of linear layers"),
        ({"fc.weight": (1, WIDTH)}, "has 'fc.weight'; expected weight and bias, or layers.N.weight and .bias"),
        (None, "head_path: no file"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(folder: Path, tmp_path: Path, weights: Any, message: str) -> None:
    if weights is not None:
        torch.save({name: torch.zeros(shape) for name, shape in weights.items()}, tmp_path / "head.pth")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        score("aesthetic", folder, head_path=str(tmp_path / "head.pth"))


@pytest.mark.parametrize(
    ("name", "paths", "starts"),
    [
        ("pickscore", {"model_name_or_path": "FOLDER", "processor_name_or_path": "FOLDER"}, []),
        (
            "pickscore",
            {},
            [
                "model_name_or_path: yuvalkirstain/PickScore_v1 is no folder, and not in the hub cache",
                "processor_name_or_path: laion/CLIP-ViT-H-14-laion2B-s32B-b79K is no folder, and not in the hub cache",
            ],
        ),
        ("clip_score", {"model_name_or_path": "/none"}, ["model_name_or_path: /none/config.json does not exist"]),
        ("clip_score", {"model_name_or_path": "FOLDER", "device": "gpu"}, ["device: "]),
        ("aesthetic", {"model_name_or_path": "FOLDER", "head_path": "/none.pth"}, ["head_path: no file /none.pth"]),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, paths: dict[str, str], starts: list[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    options = {name: value.replace("FOLDER", str(folder)) for name, value in paths.items()}
    problems = rewards.setting_problems(name, options)
    assert len(problems) >= len(starts)
    assert bool(problems) == bool(starts)
    assert all(problem.startswith(begin) for problem, begin in zip(problems, starts, strict=False)), problems
