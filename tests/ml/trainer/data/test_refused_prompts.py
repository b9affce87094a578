"""Prompts that the engine would refuse are found before anything is generated, with their row."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from verl_omni.models.tiny import MAKERS
from verl_omni.trainer import startup
from verl_omni.trainer.data import prompt_dataset
from verl_omni.trainer.settings import configuration

pytestmark = pytest.mark.slow  # loads a tokenizer and verl

ROLLOUT = "actor_rollout_ref.rollout"
FAMILY = {"wan": "wan", "qwen_image": "qwen_image", "edit": "qwen_image_edit_plus"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) / "model" for name in FAMILY}
    for name, folder in folders.items():
        MAKERS[FAMILY[name]](folder)
    _merge_line_breaks(folders["qwen_image"] / "tokenizer" / "tokenizer.json")
    return folders


def _merge_line_breaks(file: Path) -> None:
    """Let two line breaks be one token, as in released tokenizers of Qwen."""
    tokenizer = json.loads(file.read_text())
    model = tokenizer["model"]
    model["vocab"]["ĊĊ"] = max([*model["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]) + 1
    model["merges"].append(["Ċ", "Ċ"])
    file.write_text(json.dumps(tokenizer))


def check(folder: Path, model: Path, rows: list[dict[str, Any]], *overrides: str, held_out: bool = False) -> None:
    Image.new("RGB", (64, 64)).save(folder / "red.png")
    for name, written in (("rows", rows), ("right", [{"prompt": "a red circle", "images": rows[0].get("images")}])):
        kept = [{key: value for key, value in row.items() if value is not None} for row in written]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    files = {"train": "right" if held_out else "rows", "val": "rows" if held_out else "right"}
    config = configuration.load(
        [
            *(f"data.{name}_files='{folder / file}.jsonl'" for name, file in files.items()),
            f"actor_rollout_ref.model.path='{model}'",
            f"data.cache_dir='{folder}'",
            "data.max_prompt_length=900",
            "data.train_batch_size=1",
            "actor_rollout_ref.actor.ppo_mini_batch_size=1",
            "trainer.total_training_steps=1",
            f"{ROLLOUT}.pipeline.height=64",
            f"{ROLLOUT}.pipeline.width=64",
            f"{ROLLOUT}.pipeline.max_sequence_length=64",
            *overrides,
        ]
    )
    startup.fit_to_machine(config, has_accelerator=False)
    prompt_dataset.load_checked(config)


RIGHT: dict[str, Any] = {"prompt": "a red circle"}
EDIT: dict[str, Any] = {**RIGHT, "images": ["red.png"]}
SYSTEM = [{"role": "system", "content": "draw"}, {"role": "user", "content": "a red circle"}]
CASES = {
    "line breaks before the prompt": ("qwen_image", [RIGHT, {"prompt": "\n\na red circle"}], "do not begin with"),
    "another system message": ("qwen_image", [RIGHT, {"prompt": SYSTEM}], "do not begin with"),
    "too many tokens": ("qwen_image", [RIGHT, {"prompt": "a red circle " * 40}], r"max_sequence_length is 64"),
    "a place without an image": ("edit", [EDIT, {**EDIT, "prompt": "a <|image_pad|>"}], "2 places for images"),
    "no text": ("wan", [RIGHT, {"prompt": ""}], "it is empty, and Wan needs a prompt"),
}


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_prompt_that_the_engine_refuses_ends_the_run_before_it_begins(
    models: dict[str, Path], tmp_path: Path, name: str, held_out: bool
) -> None:
    model, rows, message = CASES[name]
    files = f"data.{'val' if held_out else 'train'}_files"
    where = (
        rf"row 1 of {files} \({re.escape(str(tmp_path / 'rows.jsonl'))}\), column prompt: the engine would refuse .*"
    )
    with pytest.raises(ValueError, match=where + message):
        check(tmp_path, models[model], rows, held_out=held_out)
    check(tmp_path, models[model], rows[:1], held_out=held_out)


def test_a_negative_prompt_too_if_it_is_read(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [RIGHT | {"negative_prompt": "dark"}, RIGHT | {"negative_prompt": "\n\ndark"}]
    check(tmp_path, models["qwen_image"], rows)
    with pytest.raises(ValueError, match=r"row 1 of .*column negative_prompt: the engine would refuse '\\n\\ndark'"):
        check(tmp_path, models["qwen_image"], rows, f"{ROLLOUT}.pipeline.guidance_scale=3")


def test_prompts_of_another_agent_loop_are_not_known(models: dict[str, Path], tmp_path: Path) -> None:
    check(tmp_path, models["wan"], [{"prompt": "", "agent_name": "mine"}])
