"""Prompts that are too long are found before training, and parts of prompts that have no effect."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from datasets.arrow_dataset import Column
from verl.utils import hf_tokenizer

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.trainer.data import prompt_dataset, prompt_warnings

pytestmark = pytest.mark.slow  # loads a tokenizer and verl

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"


def config(folder: Path, *overrides: str) -> Any:
    rows = [{"prompt": text} for text in ("red", "red " * 20, "blue", "blue " * 30)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = smallest_job.load(
        f"data.train_files='{folder / 'train.jsonl'}'",
        f"actor_rollout_ref.model.path='{MODEL}'",
        f"data.cache_dir='{folder}'",
        "data.max_prompt_length=8",
        *overrides,
    )
    startup.fit_to_machine(config, has_accelerator=False)
    return config


def test_long_prompts_are_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_dataset, "COUNTED_AT_ONCE", 3)
    message = r"2 of 4 prompts of data.train_files have more than data.max_prompt_length=8 tokens; the first, row 1, "
    with pytest.raises(ValueError, match=message):
        prompt_dataset.load_checked(config(tmp_path))


def test_checks_read_columns_as_a_whole_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, a million prompts take minutes."""
    read: list[Any] = []
    read_column = Column.__getitem__

    def recorded(column: Any, key: Any) -> Any:
        read.append(key)
        return read_column(column, key)

    def iterated(column: Any) -> Any:
        read.append(iter)
        return iter(read_column(column, slice(None)))

    monkeypatch.setattr(Column, "__getitem__", recorded)
    monkeypatch.setattr(Column, "__iter__", iterated)
    rows = [{"prompt": "red", "negative_prompt": "blue", "extra_info": {"size": size}} for size in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_config = config(tmp_path, f"data.val_files='{tmp_path / 'rows.jsonl'}'")
    run_config.data.train_files = run_config.data.val_files
    train, held_out = prompt_dataset.load_checked(run_config)
    assert list(prompt_warnings.describe_truncated(run_config, train, held_out)) == []
    assert list(prompt_warnings.describe_unread(run_config, train, held_out)) != []
    assert read and {str(key) for key in read} == {str(slice(None))}


def test_only_prompts_that_may_be_too_long_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = hf_tokenizer(f"{MODEL}/tokenizer")
    encoded: list[str] = []
    token_ids = prompt_dataset.token_ids

    def counted(prompts: Any, *arguments: Any) -> Any:
        encoded.extend(prompts)
        return token_ids(prompts, *arguments)

    monkeypatch.setattr(prompt_dataset, "token_ids", counted)
    # The third is longer than a prompt of `limit` tokens needs to be, and the last one is not ASCII.
    prompts = ["? ! ", "? ! ?", "? ! ? !", "red", "\ufdfa"]
    limit = 2 + 1 + len(prompts[1])
    counts = [len(ids) for ids in token_ids(prompts, tokenizer, {})]
    assert prompt_dataset.too_long(prompts, tokenizer, {}, limit) == [
        (row, c) for row, c in enumerate(counts) if c > limit
    ]
    assert encoded == [prompts[2], prompts[4]]


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_2", "tokenizer_3"])
def test_ascii_text_has_at_most_a_token_for_each_character_and_space(name: str) -> None:
    tokenizer = hf_tokenizer(f"{MODEL}/{name}")
    texts = ["", "a", *(chr(code) for code in range(128)), "".join(map(chr, range(128))), "?!" * 40, "a b " * 40]
    for text in texts:
        (ids,) = prompt_dataset.token_ids([text], tokenizer, {})
        assert len(ids) <= len(text) + tokenizer.num_special_tokens_to_add() + 1, repr(text)


def test_long_negative_prompts_too(tmp_path: Path) -> None:
    rows = [{"prompt": "red", "negative_prompt": text} for text in (None, "dark", "dark " * 20)]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [f"data.train_files='{tmp_path / 'n.jsonl'}'"]
    message = r"1 of 3 negative prompts of data.train_files .*row 2, .*write data.truncation=right$"
    with pytest.raises(ValueError, match=message):
        prompt_dataset.load_checked(config(tmp_path, *overrides))
    assert len(prompt_dataset.load_checked(config(tmp_path, *overrides, "data.truncation=right"))[0]) == 3


def test_long_held_out_prompts_too(tmp_path: Path) -> None:
    run_config = config(
        tmp_path, f"data.val_files='{tmp_path / 'train.jsonl'}'", "data.train_max_samples=1", "data.shuffle=false"
    )
    with pytest.raises(ValueError, match=r"2 of 4 prompts of data\.val_files"):
        prompt_dataset.load_checked(run_config)


@pytest.mark.parametrize(
    ("override", "rows"),
    [("data.truncation=right", 4), ("data.filter_overlong_prompts=true", 2), ("data.max_prompt_length=77", 4)],
)
def test_they_are_accepted_where_a_setting_says_what_becomes_of_them(tmp_path: Path, override: str, rows: int) -> None:
    train, held_out = prompt_dataset.load_checked(config(tmp_path, override))
    assert len(train) == rows and held_out is None


TEMPLATE = "{% for message in messages %}a b c d e f g {{ message.content }}{% endfor %}"


def test_the_tokens_of_a_chat_template_count(tmp_path: Path) -> None:
    template = f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'"
    with pytest.raises(ValueError, match=r"2 of 4 prompts .*row 1, has 27:"):
        prompt_dataset.load_checked(config(tmp_path, template))
    with pytest.raises(ValueError, match="all of them"):
        prompt_dataset.load_checked(
            config(tmp_path, template, "data.filter_overlong_prompts=true", "data.max_prompt_length=7")
        )
    train, _ = prompt_dataset.load_checked(config(tmp_path, template, "data.filter_overlong_prompts=true"))
    assert [item["extra_info"]["prompt"] for item in (train[0], train[1])] == ["red", "blue"]


def test_prompts_that_lose_their_end_in_the_text_encoder_are_counted(tmp_path: Path) -> None:
    """T5 of Stable Diffusion 3 reads `max_sequence_length` tokens, whatever the limit of the first tokenizer."""
    length = "actor_rollout_ref.rollout.{}pipeline.max_sequence_length={}"
    (tmp_path / "held_out.jsonl").write_text('{"prompt": "%s"}\n' % ("red " * 12))

    def texts(*overrides: str) -> list[str]:
        run_config = config(
            tmp_path, "data.max_prompt_length=77", f"data.val_files='{tmp_path / 'held_out.jsonl'}'", *overrides
        )
        return list(prompt_warnings.describe_truncated(run_config, *prompt_dataset.load_checked(run_config)))

    (train,) = texts(length.format("", 16))
    assert re.match(r"data.train_files: 2 of 4 prompts, such as row 1 with \d+ tokens, have more than ", train)
    assert "actor_rollout_ref.rollout.pipeline.max_sequence_length=16 tokens" in train
    assert [text.partition(":")[0] for text in texts(length.format("", 8))] == ["data.train_files", "data.val_files"]
    (held_out,) = texts(length.format("", 64), length.format("val_kwargs.", 8))
    assert "data.val_files: 1 of 1 prompts" in held_out and "val_kwargs.pipeline.max_sequence_length=8" in held_out
    assert texts(length.format("", 64)) == []


@pytest.mark.parametrize(
    ("negative", "overrides", "unread"),
    [
        ("dark", [], ["data.train_files", "data.val_files"]),
        ("dark", ["pipeline.guidance_scale=4"], []),
        ("dark", ["val_kwargs.pipeline.guidance_scale=4"], ["data.train_files"]),
        ("dark", ["pipeline.guidance_scale=4", "val_kwargs.pipeline.guidance_scale=1"], ["data.val_files"]),
        ("", [], []),
    ],
)
def test_negative_prompts_without_guidance_are_said_to_have_no_effect(
    tmp_path: Path, negative: str, overrides: list[str], unread: list[str]
) -> None:
    (tmp_path / "n.jsonl").write_text(json.dumps({"prompt": "red", "negative_prompt": negative}) + "\n")
    files = [f"data.{name}_files='{tmp_path / 'n.jsonl'}'" for name in ("train", "val")]
    run_config = config(tmp_path, *files, *(f"actor_rollout_ref.rollout.{name}" for name in overrides))
    warnings = prompt_warnings.describe_unread(run_config, *prompt_dataset.load_checked(run_config))
    assert [text.partition(":")[0] for text in warnings] == unread
