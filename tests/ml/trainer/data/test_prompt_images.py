"""Input images of prompts: messages have them, and what a model cannot edit is refused before training."""

import io
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from tests.ml import smallest_job
from verl_omni.models.tiny import MAKERS
from verl_omni.trainer import startup
from verl_omni.trainer.data import prompt_dataset, prompt_images, prompt_tables

pytestmark = pytest.mark.slow  # makes a model, loads a tokenizer and verl

SD3 = Path(__file__).parents[4] / "examples" / "shapes-sd3"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "edit"
    MAKERS["qwen_image_edit_plus"](folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("red", (64, 64)), ("wide", (96, 64))):
        Image.new("RGBA", size, "red").save(tmp_path / f"{name}.png")
    (tmp_path / "text.png").write_text("no image")
    Image.new("I;16", (64, 64)).save(tmp_path / "deep.png")
    return tmp_path


def load(model: Path, folder: Path, rows: list[dict[str, Any]], *overrides: str, name: str = "train.jsonl") -> Any:
    """The training prompts of a run with a file of `rows`."""
    if name.endswith(".parquet"):
        datasets.Dataset.from_list(rows).to_parquet(folder / name)
    else:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = smallest_job.load(
        f"data.train_files='{folder / name}'",
        f"actor_rollout_ref.model.path='{model}'",
        f"data.cache_dir='{folder}'",
        "data.max_prompt_length=400",
        "actor_rollout_ref.rollout.pipeline.height=64",
        "actor_rollout_ref.rollout.pipeline.width=64",
        *overrides,
    )
    startup.fit_to_machine(config, has_accelerator=False)
    return prompt_dataset.load_checked(config)[0]


def test_a_photo_is_upright_for_the_model_the_scorers_and_the_check_of_its_size(model: Path, folder: Path) -> None:
    """A camera stores how it was held (EXIF), and not the picture turned."""
    photo = Image.new("RGB", (128, 64), "blue")
    exif = Image.Exif()
    photo.paste("red", (0, 0, 64, 64))
    exif[0x0112] = 6  # its top is at the right
    photo.save(folder / "photo.png", exif=exif)
    opened = prompt_images.open_image("photo.png", folder)
    assert opened.size == (64, 128)
    assert opened.getpixel((0, 0)) == (255, 0, 0) and opened.getpixel((0, 127)) == (0, 0, 255)
    assert prompt_images.open_image(Image.open(folder / "photo.png"), folder).size == (64, 128)
    assert prompt_images.open_image({"bytes": (folder / "photo.png").read_bytes()}, folder).size == (64, 128)
    rows = [{"prompt": "a circle", "images": ["photo.png"]}]
    tall = "actor_rollout_ref.rollout.pipeline.height=128"
    (row,) = load(model, folder, rows, tall)
    assert row["extra_info"]["images"][0].size == (64, 128)
    plain = prompt_images.open_image("red.png", folder)
    assert plain.fp is not None, "not read yet"
    plain.close()


def red_bytes() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(written, "PNG")
    return written.getvalue()


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("train.jsonl", "red.png"),
        ("train.parquet", {"bytes": red_bytes(), "path": None}),
        ("train.jsonl", None),
        ("train.parquet", red_bytes()),
        ("train.jsonl", {"image": "red.png"}),
    ],
)
def test_an_image_is_in_front_of_the_text_and_scorers_get_it(model: Path, folder: Path, name: str, image: Any) -> None:
    image = image or str(folder / "red.png")
    rows = [{"prompt": "a circle", "images": [image]}, {"prompt": "a dog <image> and a cat", "images": [image]}]
    first, second = load(model, folder, rows, name=name)
    (message,) = first["raw_prompt"]
    picture, text = message["content"]
    assert (picture["type"], text) == ("image", {"type": "text", "text": "a circle"})
    assert picture["image"].mode == "RGB" and picture["image"].getpixel((3, 3)) == (255, 0, 0)
    assert first["extra_info"]["prompt"] == first["reward_model"]["ground_truth"] == "a circle"
    assert first["extra_info"]["images"] == [picture["image"]]
    assert [part["type"] for part in second["raw_prompt"][0]["content"]] == ["text", "image", "text"]
    assert second["extra_info"]["prompt"] == "a dog  and a cat"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_image_is_in_the_folder_of_its_rows_file(model: Path, folder: Path, suffix: str) -> None:
    """Two folders may have images of the same name."""
    paths = []
    for color in ("red", "blue"):
        part = folder / color
        part.mkdir()
        Image.new("RGB", (64, 64), color).save(part / "0.png")
        load(model, part, [{"prompt": f"a {color} dog", "images": ["0.png"]}], name=f"train.{suffix}")
        paths.append(part / f"train.{suffix}")
    rows = load(model, folder, [{"prompt": "not read"}], f"data.train_files={[str(path) for path in paths]}")
    assert [row["extra_info"]["prompt"] for row in rows] == ["a red dog", "a blue dog"]
    colors = [row["extra_info"]["images"][0].getpixel((3, 3)) for row in rows]
    assert colors == [(255, 0, 0), (0, 0, 255)]
    assert not any(prompt_tables.FOLDER in {**row, **row["extra_info"]} for row in rows), "scorers do not get it"


def test_an_image_that_is_damaged_behind_its_beginning_is_named_when_it_is_used(model: Path, folder: Path) -> None:
    whole = (folder / "red.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    rows = load(model, folder, [{"prompt": "a", "images": [name]} for name in ("red.png", "cut.png")])
    assert rows[0]["extra_info"]["images"]
    with pytest.raises(
        prompt_images.ImageNotFound, match=r"row 1 of .*train\.jsonl, .*cut\.png: the file is damaged: "
    ):
        rows[1]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "a dog"}, r"row 1 .*has 0 images, and the model takes 1 in each prompt"),
        ({"prompt": "a dog", "images": ["red.png", "red.png"]}, "has 2 images, and the model takes 1"),
        ({"prompt": "a dog", "images": ["blue.png"]}, r"row 1 .*no image .*blue\.png"),
        ({"prompt": "a dog", "images": ["text.png"]}, r"text\.png: the file is no image"),
        ({"prompt": "a dog", "images": ["deep.png"]}, r"row 1 .*the mode I;16, which has more than 8 bits: convert it"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "a dog"}]}], "images": ["red.png"]},
            "a prompt has 0 times <image>, and its row 1 images",
        ),
        ({"prompt": "a dog", "images": ["wide.png"]}, r"96 x 64 pixels have another aspect ratio .* 64 x 64: crop"),
        (
            {"prompt": "<image> and <image>", "images": ["red.png"]},
            "a prompt has 2 times <image>, and its row 1 images",
        ),
    ],
)
def test_a_row_that_the_model_cannot_edit_is_refused(model: Path, folder: Path, row: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        load(model, folder, [{"prompt": "a circle", "images": ["red.png"]}, row])


def test_an_image_for_a_model_that_takes_none_is_refused(folder: Path) -> None:
    rows = [{"prompt": "a circle", "images": ["red.png"]}]
    with pytest.raises(ValueError, match=r"row 0 .*column images: it has 1 images, and the model takes none"):
        load(SD3, folder, rows)
    (row,) = load(SD3, folder, [{"prompt": "a circle", "images": []}])
    assert row["raw_prompt"] == [{"role": "user", "content": "a circle"}]


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("train.jsonl", "red.png"),
        ("train.parquet", red_bytes()),
        ("train.parquet", {"bytes": red_bytes(), "path": None}),
        ("train.parquet", Image.new("RGB", (64, 64), "red")),  # which becomes a column of the type Image
    ],
)
@pytest.mark.parametrize("prompt", ["a dog", "<image>a dog"])
def test_a_row_may_have_an_image_instead_of_a_list(
    model: Path, folder: Path, name: str, image: Any, prompt: str
) -> None:
    (row,) = load(model, folder, [{"prompt": prompt, "images": image}], name=name)
    assert [part["type"] for part in row["raw_prompt"][0]["content"]] == ["image", "text"]
    assert row["extra_info"]["images"][0].getpixel((3, 3)) == (255, 0, 0)


def test_the_tokens_of_an_image_are_not_those_of_the_prompt(model: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"row 0, has (\d+): raise it") as refused:
        load(model, folder, [{"prompt": "a red circle", "images": ["red.png"]}], "data.max_prompt_length=8")
    needed = int(str(refused.value).partition("row 0, has ")[2].partition(":")[0])
    fits = load(model, folder, [{"prompt": "a red circle", "images": ["red.png"]}], f"data.max_prompt_length={needed}")
    assert len(fits) == 1


def test_a_part_for_an_image_gets_the_one_of_the_row(model: Path, folder: Path) -> None:
    """In Parquet, each part has all fields, most without a value."""
    parts = [{"type": "image", "text": None, "image": None}, {"type": "text", "text": "a dog", "image": None}]
    rows = [{"prompt": [{"role": "user", "content": parts}], "images": [{"bytes": red_bytes(), "path": None}]}] * 2
    (message,) = load(model, folder, rows, name="train.parquet")[0]["raw_prompt"]
    picture, text = message["content"]
    assert picture["image"].getpixel((3, 3)) == (255, 0, 0) and text == {"type": "text", "text": "a dog"}


@pytest.mark.parametrize("negative", ["<image>blurry", [{"role": "user", "content": "<image>blurry"}]])
def test_places_in_a_negative_prompt_get_the_images_of_the_prompt(model: Path, folder: Path, negative: Any) -> None:
    rows = [{"prompt": "<image>a dog", "images": ["red.png"], "negative_prompt": negative}]
    (message,) = load(model, folder, rows)[0]["raw_negative_prompt"]
    picture, text = message["content"]
    assert picture["image"].getpixel((3, 3)) == (255, 0, 0) and text == {"type": "text", "text": "blurry"}
    rows[0]["negative_prompt"] = "<image><image>"
    with pytest.raises(ValueError, match=r"row 0 .*a prompt has 2 times <image>, and its row 1 images"):
        load(model, folder, rows)
    rows[0]["negative_prompt"] = "blurry"  # the agent loop adds the image
    assert load(model, folder, rows)[0]["raw_negative_prompt"] == "blurry"


def test_messages_with_parts_stay() -> None:
    parts = [{"type": "text", "text": "a dog"}]
    assert prompt_images.with_images([{"role": "user", "content": parts}], []) == [{"role": "user", "content": parts}]
