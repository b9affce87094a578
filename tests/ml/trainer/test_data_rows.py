"""Rows of a data set reach the agent loop with all their columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer import data, settings
from verl_omni.trainer.sample_generation import evaluation_prompts, training_prompts

ROW = {
    "prompt": [{"role": "system", "content": "Draw."}, {"role": "user", "content": "a cat"}],
    "negative_prompt": "dark", "data_source": "ocr", "reward_model": {"style": "rule", "ground_truth": "HELLO"},
    "extra_info": {"index": 4711, "prompt": "own", "split": "train"},
    "agent_name": "my_agent", "ability": "text", "tools_kwargs": {"a": 1}, "seed": 5, "reward_scores": [0.5, 1.0],
}  # fmt: skip
DOG = {"prompt": [{"role": "user", "content": "a dog"}]}


def load(folder: Path, rows: list[dict[str, Any]]) -> Any:
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = settings.load(
        [
            "data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1",
            f"data.cache_dir='{folder}'",
        ]
    ).data  # fmt: skip
    return data.load(str(folder / "train.jsonl"), config, None)


def test_an_item_has_the_columns_of_its_row(tmp_path: Path) -> None:
    (item,) = load(tmp_path, [ROW])
    expected = {name: value for name, value in ROW.items() if name not in ("prompt", "negative_prompt")}
    assert item == {**expected, "raw_prompt": ROW["prompt"], "raw_negative_prompt": "dark"}


def test_text_and_number_of_a_row_are_added_where_it_has_none(tmp_path: Path) -> None:
    first, second = load(tmp_path, [ROW, DOG])
    assert first["extra_info"]["index"] == 4711
    assert (second["extra_info"]["prompt"], second["extra_info"]["index"]) == ("a dog", 1)
    assert second["agent_name"] is second["tools_kwargs"] is None
    assert second["reward_model"]["ground_truth"] == "a dog" and second["data_source"] == "unknown"


@pytest.mark.parametrize("truth", [0, ""])
def test_a_truth_that_counts_as_false_is_not_replaced_by_the_prompt(tmp_path: Path, truth: Any) -> None:
    (item,) = load(tmp_path, [{"prompt": "no dog", "ground_truth": truth}])
    assert item["reward_model"]["ground_truth"] == truth


def test_batches_have_a_column_of_objects_for_each(tmp_path: Path) -> None:
    rows = [*load(tmp_path, [ROW, DOG]), {"raw_prompt": [], "priority": 3}]
    columns = training_prompts(rows, n=2, step=1, version=0, seed=0).non_tensor_batch
    assert list(columns["agent_name"]) == ["my_agent"] * 2 + [None] * 4
    assert list(columns["tools_kwargs"]) == [{"a": 1}] * 2 + [None] * 4
    assert list(columns["priority"]) == [None] * 4 + [3] * 2
    assert list(columns["reward_scores"][:2]) == [[0.5, 1.0]] * 2 and columns["reward_scores"].dtype == object
    evaluated = evaluation_prompts(rows, seed=40, version=3)
    assert list(evaluated.non_tensor_batch["seed"]) == [5, 41, 42], "that of its row, otherwise one of the evaluation"
    assert evaluated.meta_info == {"validate": True, "global_steps": 3}
