"""The scorer geneval: its conditions on known boxes, its detector and colors on tiny random models made here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CLIPModel,
    CLIPTokenizer,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessor,
    SwinConfig,
)

from tests.ml.reward_loop.test_clip_scorers import SIZE, write_clip
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.models import clip_model
from verl_omni.reward_loop.models.object_detector import ObjectColors, ObjectDetector, instances
from verl_omni.reward_loop.rewards.geneval.conditions import COLOR_NAMES, Conditions, DetectedObject, relations

CLASSES = ["cup", "mouse", "dog"]
SIDE = 384  # the size at which transformers makes masks


def at(x: float, y: float, width: float = 10, height: float = 10, confidence: float = 0.95) -> DetectedObject:
    """An object by its center."""
    return DetectedObject((x - width / 2, y - height / 2, x + width / 2, y + height / 2), confidence)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (20, 50, {"left of"}),
        (80, 50, {"right of"}),
        (50, 20, {"above"}),
        (50, 80, {"below"}),
        (20, 20, {"left of", "above"}),
        (80, 30, {"right of"}),  # 30 to the right, 20 up: the second, less a tenth of the sizes, is 18/36 of the offset
        (51, 51, set()),  # closer than a tenth of both sizes
        (50, 50, set()),
    ],
)
def test_a_relation_is_the_direction_of_the_centers(x: float, y: float, expected: set[str]) -> None:
    assert relations(at(x, y), at(50, 50)) == expected
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert relations(at(50, 50), at(x, y)) == {opposite[relation] for relation in expected}


def test_large_objects_need_a_larger_offset() -> None:
    assert relations(at(45, 50), at(50, 50)) == {"left of"}
    assert relations(at(45, 50, width=40), at(50, 50, width=40)) == set()


def held(row: dict[str, Any], colors: tuple[str, ...] = (), **objects: list[DetectedObject]) -> list[bool]:
    return Conditions.parse(row).check(objects, lambda chosen, name: list(colors[: len(chosen)]))


CUPS = {"include": [{"class": "cup", "count": 3}], "exclude": [{"class": "cup", "count": 4}], "tag": "counting"}
RED = {"include": [{"class": "cup", "count": 1, "color": "red"}]}
NEXT_TO = {"include": [{"class": "dog", "count": 1}, {"class": "cup", "count": 1, "position": ["left of", 0]}]}
TWO = {"include": [{"class": "dog", "count": 1}, {"class": "cup", "count": 1}]}


@pytest.mark.parametrize(
    ("row", "found", "colors", "expected"),
    [
        (CUPS, {"cup": [at(1, 1)] * 3}, (), [True, True]),
        (CUPS, {"cup": [at(1, 1)] * 4}, (), [True, False]),
        (CUPS, {"cup": [at(1, 1)] * 2}, (), [False, True]),
        (CUPS, {}, (), [False, True]),
        (TWO, {"cup": [at(1, 1)], "dog": [at(1, 1)]}, (), [True, True]),
        (TWO, {"cup": [at(1, 1)]}, (), [False, True]),
        (RED, {"cup": [at(1, 1)]}, ("red",), [True, True]),
        (RED, {"cup": [at(1, 1)]}, ("blue",), [True, False]),
        (RED, {"cup": [at(1, 1), at(2, 2)]}, ("blue", "red"), [True, False]),  # the most certain one decides
        (RED, {}, ("red",), [False, False]),
        (NEXT_TO, {"cup": [at(1, 50)], "dog": [at(90, 50)]}, (), [True, True, True]),
        (NEXT_TO, {"cup": [at(90, 50)], "dog": [at(1, 50)]}, (), [True, True, False]),
        (NEXT_TO, {"cup": [at(1, 50)]}, (), [False, True, False]),
        # Parquet's rows have all fields, and a column may be JSON.
        ({**RED, "include": json.dumps(RED["include"])}, {"cup": [at(1, 1)]}, ("red",), [True, True]),
        (
            {"include": [{"class": "cup", "count": 1, "color": None, "position": None}], "exclude": None},
            {},
            (),
            [False],
        ),
    ],
)
def test_conditions_hold_for_known_objects(
    row: dict[str, Any], found: Any, colors: tuple[str, ...], expected: list[bool]
) -> None:
    assert held(row, colors, **found) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "has neither a column include nor exclude"),
        ({"include": [{"class": "cup"}]}, "include or exclude is malformed.*count"),
        ({"include": [{"class": "cup", "count": 1, "color": "mauve"}]}, "malformed"),
        ({"include": "[{"}, "malformed"),
        ({"include": [{"class": "cup", "count": 1, "position": ["above", 0]}]}, "position to 0, not to an earlier one"),
    ],
)
def test_malformed_conditions_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)geneval: .*{message}"):
        Conditions.parse(row)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`detector`, a Mask2Former of the classes CLASSES, and `clip`."""
    path = tmp_path_factory.mktemp("geneval")
    torch.manual_seed(0)
    stages = ["stage1", "stage2", "stage3", "stage4"]
    swin = SwinConfig(image_size=64, embed_dim=8, depths=[1] * 4, num_heads=[1] * 4, window_size=2, out_features=stages)
    config = Mask2FormerConfig(
        backbone_config=swin,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        dim_feedforward=16,
        num_attention_heads=2,
        encoder_layers=1,
        decoder_layers=2,
        num_queries=12,
        id2label=dict(enumerate(CLASSES)),
    )
    Mask2FormerForUniversalSegmentation(config).save_pretrained(path / "detector")
    Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 128}).save_pretrained(path / "detector")
    write_clip(path / "clip")
    yield path
    clip_model._LOADED.clear()


def image(side: int = SIDE) -> torch.Tensor:
    coarse = np.random.default_rng(0).integers(0, 256, (3, side // 32, side // 32), dtype=np.uint8)
    return torch.from_numpy(coarse.repeat(32, 1).repeat(32, 2))


def score(models: Path, picture: torch.Tensor, row: dict[str, Any], **options: Any) -> dict[str, float]:
    settings = {
        "model_name_or_path": str(models / "detector"),
        "color_model_name_or_path": str(models / "clip"),
        **options,
    }
    scores: dict[str, float] = rewards.get_scorer("geneval")("t", picture, "", row, **settings)
    return scores


def test_known_masks_are_known_objects() -> None:
    masks = torch.full((3, 8, 8), -2.0)
    masks[0, 2:4, 1:5] = 2.0
    masks[1, 6, 6] = 1.0
    classes = torch.tensor([[0.0, 5.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0]])
    first, second = instances(classes, masks, (8, 8))  # the third query has an empty mask
    assert first[0] == 1 and first[1].box == (1, 2, 5, 4)
    assert second[0] == 0 and second[1].box == (6, 6, 7, 7)
    chance = classes.double().softmax(dim=1)
    assert first[1].confidence == pytest.approx(float(chance[0, 1] * torch.tensor(2.0).sigmoid()), rel=1e-5)
    assert second[1].confidence == pytest.approx(float(chance[1, 0] * torch.tensor(1.0).sigmoid()), rel=1e-5)


def test_the_objects_are_those_of_transformers(models: Path) -> None:
    detector = ObjectDetector.load(str(models / "detector"), "cpu")
    objects = detector.detect(image(), CLASSES, 0.0)
    inputs = detector.image_processor(images=[image()], return_tensors="pt")
    with torch.inference_mode():
        output = detector.model(**inputs)
    (wanted,) = detector.image_processor.post_process_instance_segmentation(
        output, threshold=0.0, target_sizes=[(SIDE, SIDE)], return_binary_maps=True
    )
    by_class: dict[str, list[float]] = {name: [] for name in CLASSES}
    for segment in wanted["segments_info"]:
        by_class[CLASSES[segment["label_id"]]].append(segment["score"])
    assert sum(map(len, by_class.values())) >= 6
    for name in CLASSES:
        expected = sorted(by_class[name], reverse=True)
        assert [detected.confidence for detected in objects[name]] == pytest.approx(expected, abs=1e-5)


def test_only_certain_objects_are_found_and_names_are_those_of_geneval(models: Path) -> None:
    detector = ObjectDetector.load(str(models / "detector"), "cpu")
    boxes = detector.detect(image(), ["mouse"], 0.0)["mouse"]
    middle = boxes[len(boxes) // 2].confidence
    fewer = detector.detect(image(), ["computer mouse"], middle)["computer mouse"]
    assert [detected.box for detected in fewer] == [detected.box for detected in boxes if detected.confidence > middle]
    with pytest.raises(ValueError, match="the detector has no class 'unicorn'; it has cup, dog, mouse"):
        detector.detect(image(), ["unicorn"], 0.0)


def test_a_color_is_the_nearest_of_the_mean_embeddings_of_its_texts(models: Path) -> None:
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[4:20, 8:30] = True
    picture = image(SIZE)
    picture[0] = 200
    objects = [DetectedObject((8, 4, 30, 20), 1.0, mask), DetectedObject((0, 0, SIZE, SIZE), 1.0, mask | True)]
    clip = clip_model.ClipModel.load(str(models / "clip"), str(models / "clip"), "cpu")
    colors = ObjectColors(load=lambda: clip, image=picture).of(objects, "circle")

    model = CLIPModel.from_pretrained(models / "clip").double().eval()
    tokenizer = CLIPTokenizer.from_pretrained(models / "clip")
    expected = []
    with torch.no_grad():
        for detected in objects:
            seen = picture.clone()
            seen[:, ~detected.mask] = 153
            left, top, right, bottom = map(int, detected.box)
            pixels = clip.image_processor(images=[seen[:, top:bottom, left:right]], return_tensors="pt").pixel_values
            eye = model.get_image_features(pixel_values=pixels.double()).pooler_output[0]
            scores = []
            for color in COLOR_NAMES:
                directions = []
                for text in (
                    f"a photo of a {color} circle",
                    f"a photo of a {color}-colored circle",
                    f"a photo of a {color} object",
                ):
                    ids = tokenizer(text, truncation=True, max_length=6, return_tensors="pt").input_ids
                    read = model.get_text_features(input_ids=ids).pooler_output[0]
                    directions.append(read / read.norm())
                mean = torch.stack(directions).mean(0)
                scores.append(float(eye @ (mean / mean.norm())))
            expected.append(COLOR_NAMES[int(np.argmax(scores))])
    assert colors == expected


def test_the_score_is_one_if_all_conditions_hold_and_may_count_their_share(models: Path) -> None:
    detector = ObjectDetector.load(str(models / "detector"), "cpu")
    count = {name: len(result) for name, result in detector.detect(image(), CLASSES, 0.3).items()}
    name = max(count, key=lambda each: count[each])
    row = {"include": [{"class": name, "count": max(count[name], 1)}], "exclude": [{"class": name, "count": 20}]}
    result = score(models, image(), row)
    assert result["correct"] == float(count[name] > 0) and result["score"] == result["correct"]
    row["include"] = [{"class": name, "count": count[name] + 1}]
    assert score(models, image(), row) == {"score": 0, "correct": 0, "partial": 0.5}
    assert score(models, image(), row, correct_weight=0.5) == {"score": 0.25, "correct": 0, "partial": 0.5}


def test_what_is_missing_is_said_before_anything_starts(models: Path) -> None:
    settings = {
        "model_name_or_path": str(models / "detector"),
        "color_model_name_or_path": str(models / "clip"),
    }
    assert rewards.setting_problems("geneval", settings) == []
    missing = dict.fromkeys(settings, "/no")
    assert rewards.setting_problems("geneval", missing) == [
        "model_name_or_path: /no/config.json does not exist; write the folder of a Mask2Former model",
        "color_model_name_or_path: /no/config.json does not exist; write the folder of a CLIP model",
    ]
