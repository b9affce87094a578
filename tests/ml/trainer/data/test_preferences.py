"""Preference data sets: pairs of images to requests of updates, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from PIL import Image

from control.cli.document_blocks import ROOT, blocks
from tests.ml import smallest_job
from verl_omni.pipelines import registry
from verl_omni.trainer.data import prompt_dataset, prompt_files, prompt_images, run_length
from verl_omni.trainer.data.preferences import PreferencePairs
from verl_omni.trainer.settings import configuration

OFFLINE = "algorithm.sample_source=offline"
RED = (255, 0, 0)
BLUE = (0, 0, 255)


def read(path: Path) -> Any:
    return prompt_dataset.load(str(path), smallest_job.load(f"data.cache_dir='{path.parent}'").data, None)


def dataset(folder: Path, rows: list[dict[str, Any]]) -> Any:
    """The rows in a file of the trainer's."""
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read(folder / "pairs.jsonl")


def test_a_request_has_the_images_in_their_order_at_the_size_of_samples(tmp_path: Path) -> None:
    Image.new("RGB", (40, 16), RED).save(tmp_path / "red.png")
    Image.new("L", (8, 8), 200).save(tmp_path / "gray.png")
    rows = [
        {"prompt": "a red wall", "chosen": "red.png", "rejected": "gray.png"},
        {"prompt": "a gray wall", "chosen": str(tmp_path / "gray.png"), "rejected": "red.png"},
    ]
    pairs = PreferencePairs(dataset(tmp_path, rows), tmp_path, height=16, width=8)
    request = pairs.update_request([1, 0], seed=3)
    pixels = request.batch["pixels"]
    assert pixels.shape == (2, 2, 3, 16, 8) and pixels.dtype == torch.uint8
    assert list(request.non_tensor_batch["prompts"]) == ["a gray wall", "a red wall"]
    assert pixels[0, 0].unique().tolist() == [200] and torch.equal(pixels[0, 1], pixels[1, 0])
    assert pixels[1, 0].float().mean(dim=(1, 2)).tolist() == [255, 0, 0]
    assert request.batch["preferred"].tolist() == [1, 1]
    assert torch.equal(request.batch["draw_seeds"], pairs.update_request([0, 1], seed=3).batch["draw_seeds"])
    assert not torch.equal(request.batch["draw_seeds"], pairs.update_request([1, 0], seed=4).batch["draw_seeds"])


def test_photographs_are_upright(tmp_path: Path) -> None:
    """A camera stores how it was held (EXIF), and not the picture turned."""
    stored = Image.new("RGB", (16, 8), RED)
    stored.paste(BLUE, (8, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is at the right
    stored.save(tmp_path / "photo.png", exif=exif)
    stored.save(tmp_path / "drawing.png")
    rows = [{"prompt": "a", "chosen": "photo.png", "rejected": "drawing.png"}]
    (pixels,) = (
        PreferencePairs(dataset(tmp_path, rows), tmp_path, height=16, width=8).update_request([0], 1).batch["pixels"]
    )
    assert pixels[0, :, 0, 0].tolist() == [255, 0, 0] and pixels[0, :, 15, 7].tolist() == [0, 0, 255]
    assert pixels[0, :, 0, 7].tolist() == [255, 0, 0], "turned, not cropped"


def colors(pairs: PreferencePairs, rows: list[int]) -> list[list[list[float]]]:
    """Mean color of both images of each row, the preferred one first."""
    means: list[list[list[float]]] = (
        pairs.update_request(rows, seed=1).batch["pixels"].float().mean(dim=(3, 4)).tolist()
    )
    return means


def encoded(color: tuple[int, int, int]) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.mark.parametrize("feature", [None, datasets.Image()], ids=["a mapping", "an image of datasets"])
def test_images_may_be_in_the_data_set(tmp_path: Path, feature: datasets.Image | None) -> None:
    pairs = datasets.Dataset.from_list([{"prompt": "a", "chosen": encoded(RED), "rejected": encoded(BLUE)}])
    for name in ("chosen", "rejected") if feature else ():
        pairs = pairs.cast_column(name, feature)
    pairs.to_parquet(tmp_path / "pairs.parquet")
    rows = read(tmp_path / "pairs.parquet")
    assert colors(PreferencePairs(rows, tmp_path, height=8, width=8), [0]) == [[list(RED), list(BLUE)]]


def test_images_are_in_the_folder_of_their_rows_file(tmp_path: Path) -> None:
    """Two folders may have images of the same name."""
    paths = []
    for name, better, worse in (("one", RED, BLUE), ("other", BLUE, RED)):
        folder = tmp_path / name
        folder.mkdir()
        Image.new("RGB", (8, 8), better).save(folder / "a.png")
        Image.new("RGB", (8, 8), worse).save(folder / "b.png")
        dataset(folder, [{"prompt": name, "chosen": "a.png", "rejected": "b.png"}])
        prompt_files.check_file(folder / "pairs.jsonl", "prompt", pairs=True)
        paths.append(str(folder / "pairs.jsonl"))
    rows = prompt_dataset.load(paths, smallest_job.load(f"data.cache_dir='{tmp_path}'").data, None)
    pairs = PreferencePairs(rows, tmp_path / "one", height=8, width=8)
    assert colors(pairs, [0, 1]) == [[list(RED), list(BLUE)], [list(BLUE), list(RED)]]


def test_images_of_datasets_may_be_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8), RED).save(tmp_path / "red.png")
    columns = datasets.Features(
        {"prompt": datasets.Value("string"), "chosen": datasets.Image(), "rejected": datasets.Image()}
    )
    row = {"prompt": "a", "chosen": "red.png", "rejected": encoded(BLUE)}
    with monkeypatch.context() as there:
        there.chdir(tmp_path)  # datasets looks for files from the working directory
        datasets.Dataset.from_list([row], features=columns).to_parquet("pairs.parquet")
    rows = read(tmp_path / "pairs.parquet")
    assert colors(PreferencePairs(rows, tmp_path, height=8, width=8), [0]) == [[list(RED), list(BLUE)]]


def test_the_program_of_the_docs_writes_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "reference" / "algorithms.md"
    (program,) = [block for block in blocks(page) if block.language == "python"]
    for name, color in (("a", RED), ("b", BLUE)):
        Image.new("RGB", (8, 8), color).save(tmp_path / f"{name}.png")
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        exec(compile(program.text, "docs/reference/algorithms.md", "exec"), {})
    rows = read(tmp_path / "train.parquet")
    request = PreferencePairs(rows, tmp_path / "elsewhere", height=8, width=8).update_request([0], seed=1)
    assert request.batch["pixels"][0].float().mean(dim=(2, 3)).tolist() == [[255, 0, 0], [0, 0, 255]]
    assert list(request.non_tensor_batch["prompts"]) == ["a red circle"]


def test_a_missing_column_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no pairs of images.*the columns are prompt, chosen, and .* jpg_0, jpg_1"):
        PreferencePairs(dataset(tmp_path, [{"prompt": "a", "chosen": "x.png"}]), tmp_path, height=8, width=8)
    rows = [{"prompt": "b", "chosen": "x.png", "rejected": "x.png"}]
    with pytest.raises(ValueError, match=r"row 0 of data.train_files: chosen is .*x\.png"):
        PreferencePairs(dataset(tmp_path, rows), tmp_path, height=8, width=8)
    rows = [{"prompt": "b", "chosen": "x.png", "rejected": None}]
    (tmp_path / "x.png").touch()
    with pytest.raises(ValueError, match=r"row 0 of data.train_files: rejected is None, neither a path nor bytes"):
        PreferencePairs(dataset(tmp_path, rows), tmp_path, height=8, width=8)


def test_a_pair_of_an_image_with_itself_is_refused(tmp_path: Path) -> None:
    """Only rounding would tell the two apart, and the optimizer would enlarge it to whole steps."""
    for name, color in (("red", RED), ("blue", BLUE)):
        Image.new("RGB", (8, 8), color).save(tmp_path / f"{name}.png")
    rows = [{"prompt": "a", "chosen": "red.png", "rejected": name} for name in ("blue.png", "red.png")]
    dataset(tmp_path, rows)
    with pytest.raises(prompt_files.InvalidPromptFile, match=r"pairs\.jsonl:2: chosen and rejected are the same image"):
        prompt_files.check_file(tmp_path / "pairs.jsonl", "prompt", pairs=True)
    same = [{"prompt": "a", "jpg_0": encoded(RED), "jpg_1": encoded(RED), "label_0": label} for label in (0.5, 1.0)]
    with pytest.raises(ValueError, match=r"row 1 of data\.train_files: jpg_0 and jpg_1 are the same image"):
        PreferencePairs(parquet(tmp_path, same), tmp_path, height=8, width=8)


def test_a_file_that_is_no_image_is_refused_and_one_that_is_damaged_is_named_when_it_is_used(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(tmp_path / "noise.png")
    whole = (tmp_path / "noise.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no image")
    Image.new("I;16", (8, 8)).save(tmp_path / "deep.png")
    whole_and = [
        {"prompt": "a", "chosen": "noise.png", "rejected": name} for name in ("cut.png", "text.png", "deep.png")
    ]
    for row, text in (
        (1, r"rejected: text\.png: the file is no image"),
        (2, "rejected: its pixels have the mode I;16"),
    ):
        with pytest.raises(ValueError, match=f"row 1 of data.train_files: {text}"):
            PreferencePairs(dataset(tmp_path, [whole_and[0], whole_and[row]]), tmp_path, height=8, width=8)
    tie = {"prompt": "a", "jpg_0": encoded(RED), "jpg_1": encoded(BLUE), "label_0": 0.5}
    cut = {
        "prompt": "a",
        "jpg_0": encoded(RED),
        "jpg_1": {"bytes": whole[: len(whole) // 2], "path": None},
        "label_0": 1.0,
    }
    pairs = PreferencePairs(parquet(tmp_path, [tie, cut]), tmp_path, height=8, width=8)
    with pytest.raises(
        prompt_images.ImageNotFound, match=r"row 1 of data\.train_files: its bytes: the file is damaged"
    ):
        pairs.update_request([0], seed=1)


def test_other_algorithms_and_families_refuse_a_data_set_of_preferences() -> None:
    with pytest.raises(configuration.SettingsError, match="offline does not go with flow_grpo"):
        smallest_job.load(OFFLINE)
    registry.check_encoder("StableDiffusion3Pipeline")
    with pytest.raises(ValueError, match="supported for StableDiffusion3Pipeline, not for WanPipeline"):
        registry.check_encoder("WanPipeline")


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Any:
    """The rows in a Parquet file, checked as before a start, and as the trainer reads them."""
    path = folder / "pairs.parquet"
    pd.DataFrame(rows).to_parquet(path)
    prompt_files.check_file(path, "prompt", pairs=True)
    return read(path)


def test_pairs_of_the_references_data_script_are_read_and_its_other_columns_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, color in (("w", RED), ("l", BLUE)):
        Image.new("RGB", (8, 8), color).save(tmp_path / "images" / f"{name}.png")
    row = {
        "prompt": [{"role": "user", "content": "a bowl"}],
        "img_win": "images/w.png",
        "img_lose": "images/l.png",
        "img_win_latents": b"",
        "img_lose_latents": b"",
        "prompt_embeds": b"",
        "win_score": 1.0,
    }
    pairs = PreferencePairs(parquet(tmp_path, [row] * 2), tmp_path, height=8, width=8)
    assert colors(pairs, [1]) == [[list(RED), list(BLUE)]]
    assert pairs.notes == [
        "data.train_files: not read, because training encodes images and prompts: img_win_latents, img_lose_latents, "
        "prompt_embeds"
    ]


def test_labels_of_pick_a_pic_choose_the_image_and_ties_are_left_out_and_counted(tmp_path: Path) -> None:
    red = encoded(RED)["bytes"]
    blue = encoded(BLUE)["bytes"]
    labels = [0.0, 0.5, 1.0, None]
    rows = [{"prompt": f"p{n}", "jpg_0": red, "jpg_1": blue, "label_0": label} for n, label in enumerate(labels)]
    loaded = parquet(tmp_path, rows)
    pairs = PreferencePairs(loaded, tmp_path, height=8, width=8)
    assert len(loaded) == 2 and pairs.notes == [
        "data.train_files: 2 of 4 rows prefer neither image (label_0), and are left out"
    ]
    assert colors(pairs, [0, 1]) == [[list(BLUE), list(RED)], [list(RED), list(BLUE)]]
    assert list(pairs.update_request([0, 1], 1).non_tensor_batch["prompts"]) == ["p0", "p2"]
    overrides = [
        "actor_rollout_ref.model.path=m",
        f"data.train_files='{tmp_path / 'pairs.parquet'}'",
        OFFLINE,
        "data.train_batch_size=1",
        "actor_rollout_ref.model.algorithm=dpo",
        "actor_rollout_ref.actor.diffusion_loss.loss_mode=dpo",
        "trainer.total_epochs=3",
    ]
    assert run_length.total_steps(configuration.load(overrides)) == 6


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"jpg_0": b"x", "jpg_1": b"y", "label_0": 0.7}, r"row 0: label_0 is 0.7, not 1 \(jpg_0 is preferred\), 0 or"),
        ({"img_win": "w.png", "img_lose": "l.png"}, r"row 0: img_win is .*/w.png, which does not exist"),
        (
            {"jpg_0": b"x", "jpg_1": b"y"},
            "the columns are prompt, jpg_0, jpg_1, and a pair is in one of these groups: "
            "chosen, rejected; img_win, img_lose; jpg_0, jpg_1, label_0",
        ),
    ],
)
def test_pairs_that_cannot_be_used_are_refused_before_the_start(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(prompt_files.InvalidPromptFile, match=words):
        parquet(tmp_path, [{"prompt": "a", **row}])
    if not any(isinstance(value, bytes) for value in row.values()):
        (tmp_path / "pairs.jsonl").write_text(json.dumps({"prompt": "a", **row}))
        with pytest.raises(prompt_files.InvalidPromptFile, match=words.replace("row 0", "jsonl:1")):
            prompt_files.check_file(tmp_path / "pairs.jsonl", "prompt", pairs=True)
