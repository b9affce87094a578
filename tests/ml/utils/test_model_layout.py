"""Model folders as people have them: what keeps a run from loading them, and weights of a variant."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from control.cli.document_blocks import ROOT
from verl_omni.utils.model_layout import find_problems, plain_folder

DIFFUSERS = "diffusion_pytorch_model"
TRANSFORMERS = "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT / "examples" / "shapes-sd3", tmp_path / "shapes-sd3")


def rename(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


def set_entry(folder: Path, component: str, entry: list[str | None]) -> None:
    index = folder / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), component: entry}))


def split(folder: Path, stem: str, variant: str = "") -> None:
    """Two parts of the weights of a component, with their index, as save_pretrained names them."""
    single = folder / f"{stem}.safetensors"
    part = f"{stem}{f'.{variant}' if variant else ''}-0000{{}}-of-00002.safetensors"
    for number in (1, 2):
        shutil.copy(single, folder / part.format(number))
    single.unlink()
    index = f"{stem}.safetensors.index.{f'{variant}.' if variant else ''}json"
    (folder / index).write_text(json.dumps({"weight_map": {"a": part.format(1), "b": part.format(2)}}))


def in_variant(folder: Path) -> None:
    for path in list(folder.glob("*/*.safetensors")):
        rename(path, path.name.replace(".safetensors", ".fp16.safetensors"))


def pickle(path: Path) -> None:
    rename(path, f"{path.stem.replace('model', 'pytorch_model', path.stem == 'model')}.bin")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def lose_part(folder: Path) -> None:
    split(folder / "text_encoder", TRANSFORMERS)
    (folder / "text_encoder" / "model-00002-of-00002.safetensors").unlink()


def lose_index(folder: Path) -> None:
    split(folder / "transformer", DIFFUSERS)
    (folder / "transformer" / f"{DIFFUSERS}.safetensors.index.json").unlink()


def add_variants(folder: Path) -> None:
    path = folder / "vae" / f"{DIFFUSERS}.safetensors"
    shutil.copy(path, path.with_name(f"{DIFFUSERS}.bf16.safetensors"))
    rename(path, f"{DIFFUSERS}.fp16.safetensors")


WEIGHTS = f"transformer/{DIFFUSERS}.safetensors"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no T5": (
        lambda folder: set_entry(folder, "text_encoder_3", [None, None]),
        "model_index.json: text_encoder_3 is null, and the rollout engine needs it",
    ),
    "no folder": (lambda folder: shutil.rmtree(folder / "vae"), "vae does not exist; complete the download"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "transformer has no weights; complete the download"),
    "part": (lose_part, "text_encoder/model-00002-of-00002.safetensors does not exist, and the index names it"),
    "index": (lose_index, "transformer has parts of its weights, and not their index"),
    "pickled": (lambda folder: pickle(folder / WEIGHTS), "transformer has weights as *.bin, and the rollout engine"),
    "cut": (lambda folder: cut(folder / WEIGHTS), "download it again"),
    "empty": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "is no safetensors file, or only a part"),
    "pointer": (
        lambda folder: (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "is a pointer of Git LFS and not the file: run `git lfs pull`",
    ),
    "variants": (add_variants, "vae has weights of the variants bf16 and fp16: delete all but one"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_keeps_a_model_from_loading_is_named_with_its_component(folder: Path, case: str) -> None:
    break_folder, words = BROKEN[case]
    assert list(find_problems(folder)) == []
    break_folder(folder)
    (problem,) = find_problems(folder)
    assert words in problem and str(folder) in problem


def test_a_family_of_the_user_may_have_no_text_encoder(folder: Path) -> None:
    set_entry(folder, "text_encoder_3", [None, None])
    assert list(find_problems(folder, extended=True)) == []


def test_a_text_encoder_may_be_pickled(folder: Path) -> None:
    pickle(folder / "text_encoder" / "model.safetensors")
    assert list(find_problems(folder)) == []


def test_a_folder_with_plain_names_is_used_itself(folder: Path, tmp_path: Path) -> None:
    split(folder / "text_encoder_3", TRANSFORMERS)
    assert plain_folder(folder, tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_weights_of_a_variant_are_linked_with_plain_names(folder: Path, tmp_path: Path) -> None:
    split(folder / "text_encoder_3", TRANSFORMERS, "fp16")
    in_variant(folder)
    split_names = [f"model.fp16-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in split_names:
        rename(folder / "text_encoder_3" / name.replace(".safetensors", ".fp16.safetensors"), name)
    assert list(find_problems(folder)) == []
    view = plain_folder(folder, tmp_path / "cache")
    assert view == plain_folder(folder, tmp_path / "cache") and view.parent == tmp_path / "cache"
    assert (view / WEIGHTS).read_bytes() == (ROOT / "examples" / "shapes-sd3" / WEIGHTS).read_bytes()
    assert sorted(path.name for path in (view / "transformer").iterdir()) == ["config.json", f"{DIFFUSERS}.safetensors"]
    assert sorted(path.name for path in (view / "text_encoder_3").iterdir()) == [
        "config.json",
        *split_names,
        "model.safetensors.index.json",
    ]
    assert (view / "tokenizer" / "tokenizer.json").is_file() and (view / "model_index.json").is_file()
    assert list(find_problems(view)) == []


def test_a_variant_beside_the_plain_weights_is_left_out(folder: Path, tmp_path: Path) -> None:
    """vLLM-Omni reads every safetensors file of a transformer without an index."""
    shutil.copy(folder / WEIGHTS, (folder / WEIGHTS).with_name(f"{DIFFUSERS}.fp16.safetensors"))
    view = plain_folder(folder, tmp_path / "cache")
    assert [path.name for path in (view / "transformer").glob("*.safetensors")] == [f"{DIFFUSERS}.safetensors"]
    assert (view / WEIGHTS).samefile(folder / WEIGHTS)
