"""Rows of a data set reach the agent loop with all their columns."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.ml import smallest_job
from verl_omni.trainer.data import prompt_dataset
from verl_omni.trainer.generation.sample_generation import evaluation_requests, training_requests
from verl_omni.trainer.generation.verl_batches import requests_to_verl

ROW = {
    "prompt": [{"role": "system", "content": "Draw."}, {"role": "user", "content": "a cat"}],
    "negative_prompt": "dark",
    "data_source": "ocr",
    "reward_model": {"style": "rule", "ground_truth": "HELLO"},
    "extra_info": {"index": 4711, "prompt": "own", "split": "train"},
    "agent_name": "my_agent",
    "ability": "text",
    "tools_kwargs": {"a": 1},
    "seed": 5,
    "reward_scores": [0.5, 1.0],
}
DOG = {"prompt": [{"role": "user", "content": "a dog"}]}


def config(folder: Path) -> Any:
    return smallest_job.load(f"data.cache_dir='{folder}'").data


def load_text(path: Path, text: str) -> Any:
    path.write_text(text)
    return prompt_dataset.load(str(path), config(path.parent), None)


def load(folder: Path, rows: list[dict[str, Any]]) -> Any:
    return load_text(folder / "train.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


def test_an_item_has_the_columns_of_its_row(tmp_path: Path) -> None:
    (item,) = load(tmp_path, [ROW])
    expected: dict[str, Any] = {name: value for name, value in ROW.items() if name not in ("prompt", "negative_prompt")}
    arguments = ("data_source", "reward_model", "extra_info")
    extra = {name: value for name, value in expected.items() if name not in arguments} | expected["extra_info"]
    assert item == {**expected, "extra_info": extra, "raw_prompt": ROW["prompt"], "raw_negative_prompt": "dark"}


def test_text_and_number_of_a_row_are_added_where_it_has_none(tmp_path: Path) -> None:
    first, second = load(tmp_path, [ROW, DOG])
    assert first["extra_info"]["index"] == 4711
    assert (second["extra_info"]["prompt"], second["extra_info"]["index"]) == ("a dog", 1)
    assert second["agent_name"] is second["tools_kwargs"] is None
    assert second["reward_model"]["ground_truth"] == "a dog" and second["data_source"] == "unknown"


GENEVAL = [
    {"tag": "counting", "include": [{"class": "cup", "count": 2}], "exclude": [{"class": "cup", "count": 3}]},
    {"tag": "color_attr", "include": [{"class": "bus", "count": 1, "color": "pink"}, {"class": "cat", "count": 1}]},
    {"tag": "position", "include": [{"class": "cat", "count": 1, "position": ["left of", 0]}], "note": None},
]


@pytest.mark.parametrize("count", [2, 3])
def test_a_scorer_gets_the_columns_of_its_row_as_they_are_written(tmp_path: Path, count: int) -> None:
    """GenEval's mappings have different keys, and a check such as `"color" in include` must see only its row's keys."""
    rows = load(tmp_path, [{**row, "prompt": row["tag"]} for row in GENEVAL[:count]])
    for number, (item, row) in enumerate(zip(rows, GENEVAL[:count], strict=True)):
        written = {name: value for name, value in row.items() if value is not None}
        assert item["extra_info"] == {**written, "prompt": row["tag"], "index": number}


def test_a_column_replaces_neither_the_prompt_nor_a_field_of_extra_info(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(
        json.dumps({"caption": "a cat", "prompt": "b", "index": 9, "tag": 1, "extra_info": {"tag": 2, "prompt": None}})
    )
    chosen = config(tmp_path)
    chosen.prompt_key = "caption"
    (item,) = prompt_dataset.load(str(tmp_path / "t.jsonl"), chosen, None)
    assert item["extra_info"] == {"prompt": "a cat", "index": 9, "tag": 2}


@pytest.mark.parametrize("truth", [0, ""])
def test_a_truth_that_counts_as_false_is_not_replaced_by_the_prompt(tmp_path: Path, truth: Any) -> None:
    (item,) = load(tmp_path, [{"prompt": "no dog", "ground_truth": truth}])
    assert item["reward_model"]["ground_truth"] == truth


def test_batches_have_a_column_of_objects_for_each(tmp_path: Path) -> None:
    rows = [*load(tmp_path, [ROW, DOG]), {"raw_prompt": [], "priority": 3}]
    columns = requests_to_verl(training_requests(rows, n=2, step=1, version=0, seed=0)).non_tensor_batch
    assert list(columns["agent_name"]) == ["my_agent"] * 2 + [None] * 4
    assert list(columns["tools_kwargs"]) == [{"a": 1}] * 2 + [None] * 4
    assert list(columns["priority"]) == [None] * 4 + [3] * 2
    assert list(columns["reward_scores"][:2]) == [[0.5, 1.0]] * 2 and columns["reward_scores"].dtype == object
    evaluated = requests_to_verl(evaluation_requests(rows, seed=40, version=3))
    assert list(evaluated.non_tensor_batch["seed"]) == [5, 41, 42], "the row's seed, otherwise one of the evaluation"
    assert evaluated.meta_info == {"validate": True, "global_steps": 3, "failures_allowed": 0}


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_values_of_json_stay_what_they_are(tmp_path: Path, name: str) -> None:
    """The reader of Hugging Face's datasets makes dates of texts, which OCR's prompts can be."""
    rows = [
        {"prompt": "2024-01-01", "ground_truth": "2024-05-01 10:00:00", "id": 2**53 + 1, "weight": 0.1 + 0.2},
        {"prompt": "2024-01-02", "ground_truth": "2024-05-02", "extra_info": {"made": "2024-01-01"}},
    ]
    text = json.dumps(rows, indent=1) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
    first, second = load_text(tmp_path / name, " " * 200 + text)
    assert first["raw_prompt"] == [{"role": "user", "content": "2024-01-01"}]
    assert first["reward_model"]["ground_truth"] == "2024-05-01 10:00:00"
    assert (first["id"], second["id"], first["weight"]) == (2**53 + 1, None, 0.1 + 0.2)
    assert second["extra_info"]["made"] == "2024-01-01"


def test_a_column_may_begin_after_ten_megabytes(tmp_path: Path) -> None:
    long = [{"prompt": "a" * 2**20, "tags": []} for _ in range(11)]
    rows = load(tmp_path, [*long, {"prompt": "b", "tags": ["x"], "late": {"a": 1}}, {"prompt": "c", "tags": "y"}])
    assert [row["tags"] for row in rows] == [[]] * 11 + [["x"], "y"]
    assert [row["late"] for row in rows] == [None] * 11 + [{"a": 1}, None]


def test_columns_of_several_files_are_joined(tmp_path: Path) -> None:
    for name, row in (("a", {"x": "s", "extra_info": {"a": 1}}), ("b", {"x": 1, "extra_info": {"b": "2"}})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name, **row}))
    parquet.write_table(pa.table({"prompt": ["c"], "y": [2]}), tmp_path / "c.parquet")
    rows = prompt_dataset.load(
        [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "c.parquet")], config(tmp_path), None
    )
    assert [row["extra_info"]["prompt"] for row in rows] == ["a", "b", "c"]
    assert [row["x"] for row in rows] == ["s", 1, None] and [row["y"] for row in rows] == [None, None, 2]
    assert rows[0]["extra_info"] == {"a": 1, "prompt": "a", "index": 0, "x": "s"} and rows[1]["extra_info"]["b"] == "2"


def test_texts_that_look_like_json_stay_texts_between_other_types(tmp_path: Path) -> None:
    texts = ["1", "true", "null", "[]", "{}", '"a"', "NaN", ""]
    values = [*texts, 0.1 + 0.2, 2**63 - 1, True, ["1"], {"a": "2"}]
    chat = [{"role": "user", "content": "b"}]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in [*texts, chat]))
    rows = load(tmp_path, [{"prompt": "a", "x": value, "extra_info": {"x": value}} for value in values])
    assert [row["x"] for row in rows] == [row["extra_info"]["x"] for row in rows] == values
    rows = prompt_dataset.load([str(tmp_path / name) for name in ("train.jsonl", "p.jsonl")], config(tmp_path), None)
    assert [row["extra_info"]["prompt"] for row in rows] == ["a"] * len(values) + [*texts, "b"]


def test_columns_of_parquet_files_that_differ_are_joined_where_a_type_holds_both(tmp_path: Path) -> None:
    """As pandas and polars write texts, and data sets their `extra_info`."""
    tables = [
        pa.table({"prompt": ["a"], "extra_info": [{"a": 1}], "n": pa.array([1], pa.int32()), "x": [None]}),
        pa.table({"prompt": pa.array(["b"], pa.large_string()), "extra_info": [{"b": "2", "a": 3}], "n": [2]}),
        pa.table({"prompt": pa.array(["c"]).dictionary_encode(), "extra_info": pa.nulls(1), "x": [b"c"]}),
        pa.table({"prompt": [[{"role": "user", "content": "d"}]], "n": ["3"]}),
    ]
    files = [str(tmp_path / f"{number}.parquet") for number in range(len(tables))]
    for table, file in zip(tables, files, strict=True):
        parquet.write_table(table, file)
    (tmp_path / "d.jsonl").write_text('{"prompt": "e"}\n')
    rows = prompt_dataset.load([*files, str(tmp_path / "d.jsonl")], config(tmp_path), None)
    assert [row["extra_info"]["prompt"] for row in rows] == ["a", "b", "c", "d", "e"]
    assert [row["extra_info"].get("a") for row in rows] == [1, 3, None, None, None]
    assert [row["extra_info"].get("b") for row in rows] == [None, "2", None, None, None]
    assert [row["n"] for row in rows] == [1, 2, None, "3", None] and rows[2]["x"] == b"c"


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_a_copy_of_another_file_with_the_time_of_the_first_is_read(tmp_path: Path, name: str) -> None:
    """As `cp -p`, `rsync -a` and archives write it, and a cache must not have the first."""
    path = tmp_path / "sets[1]*" / name  # no pattern
    path.parent.mkdir()
    for text in ("one", "two"):
        if name.endswith(".parquet"):
            parquet.write_table(pa.table({"prompt": [text]}), path)
        else:
            path.write_text(json.dumps({"prompt": text}))
        os.utime(path, (1e9, 1e9))
        (row,) = prompt_dataset.load(str(path), config(tmp_path), None)
        assert row["extra_info"]["prompt"] == text
