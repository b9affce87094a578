"""Prompts that are too long are found before training, if they may not be truncated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer import data, main_diffusion, settings, startup

pytestmark = pytest.mark.slow  # loads a tokenizer and verl

MODEL = Path(__file__).parents[3] / "examples" / "shapes-sd3"


def config(folder: Path, *overrides: str) -> Any:
    rows = [{"prompt": text} for text in ("red", "red " * 20, "blue", "blue " * 30)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = settings.load([
        f"data.train_files='{folder / 'train.jsonl'}'", f"actor_rollout_ref.model.path='{MODEL}'",
        f"data.cache_dir='{folder}'", "trainer.total_training_steps=1", "data.max_prompt_length=8", *overrides,
    ])  # fmt: skip
    startup.fit_to_machine(made, has_accelerator=False)
    return made


def test_long_prompts_are_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "COUNTED_AT_ONCE", 3)
    with pytest.raises(
        ValueError, match=r"2 of 4 prompts have more than data.max_prompt_length=8 tokens; the first, row 1, "
    ):
        main_diffusion._prompts(config(tmp_path))


def test_long_held_out_prompts_too(tmp_path: Path) -> None:
    made = config(
        tmp_path, f"data.val_files='{tmp_path / 'train.jsonl'}'", "data.train_max_samples=1", "data.shuffle=false"
    )
    with pytest.raises(ValueError, match="2 of 4 prompts"):
        main_diffusion._prompts(made)


@pytest.mark.parametrize(
    ("override", "rows"),
    [("data.truncation=right", 4), ("data.filter_overlong_prompts=true", 2), ("data.max_prompt_length=77", 4)],
)
def test_they_are_accepted_where_a_setting_says_what_becomes_of_them(tmp_path: Path, override: str, rows: int) -> None:
    train, held_out = main_diffusion._prompts(config(tmp_path, override))
    assert len(train) == rows and held_out is None


TEMPLATE = "{% for message in messages %}a b c d e f g {{ message.content }}{% endfor %}"


def test_the_tokens_of_a_chat_template_count(tmp_path: Path) -> None:
    template = f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'"
    with pytest.raises(ValueError, match=r"2 of 4 prompts have more .*row 1, has 27:"):
        main_diffusion._prompts(config(tmp_path, template))
    with pytest.raises(ValueError, match="all of them"):
        main_diffusion._prompts(
            config(tmp_path, template, "data.filter_overlong_prompts=true", "data.max_prompt_length=7")
        )
    train, _ = main_diffusion._prompts(config(tmp_path, template, "data.filter_overlong_prompts=true"))
    assert [item["extra_info"]["prompt"] for item in (train[0], train[1])] == ["red", "blue"]
