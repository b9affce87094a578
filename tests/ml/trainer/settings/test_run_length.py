"""Length of a run: steps, or epochs of the data set, whichever ends first."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_omni.trainer.data import run_length
from verl_omni.trainer.settings import configuration


def load(files: object, *overrides: str) -> int:
    text = json.dumps([str(file) for file in files] if isinstance(files, list) else str(files))
    config = configuration.load(
        [
            f"data.train_files={text}",
            "actor_rollout_ref.model.path=m",
            "data.train_batch_size=4",
            *overrides,
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        ]
    )
    return run_length.total_steps(config)


@pytest.fixture
def ten_rows(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(10)) + "\n")
    return path


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("trainer.total_training_steps=7",), 7),
        (("trainer.total_epochs=3",), 6),
        (("trainer.total_epochs=3", "trainer.total_training_steps=7"), 6),
        (("trainer.total_epochs=3", "trainer.total_training_steps=5"), 5),
        (("trainer.total_epochs=3", "data.train_max_samples=5"), 3),
        (("trainer.total_epochs=3", "data.train_max_samples=500"), 6),
    ],
)
def test_a_run_ends_at_what_comes_first(ten_rows: Path, overrides: tuple[str, ...], expected: int) -> None:
    assert load(ten_rows, *overrides) == expected


def test_rows_of_every_format_are_counted(ten_rows: Path, tmp_path: Path) -> None:
    parquet = tmp_path / "b.parquet"
    array = tmp_path / "c.json"
    pq.write_table(pa.table({"prompt": ["a"] * 6}), parquet)
    array.write_text(json.dumps([{"prompt": "a"}] * 4, indent=1))
    assert run_length.count_rows([str(ten_rows), str(parquet), str(array)]) == 20
    assert load([ten_rows, parquet, array], "trainer.total_epochs=1") == 5


def test_without_epochs_no_file_is_read() -> None:
    assert load("missing.jsonl", "trainer.total_training_steps=7") == 7


def test_a_data_set_smaller_than_a_batch_is_refused(ten_rows: Path) -> None:
    with pytest.raises(ValueError, match=r"has 3 prompts, and a step 4 \(data.train_batch_size\)"):
        load(ten_rows, "trainer.total_epochs=1", "data.train_max_samples=3")


@pytest.mark.parametrize(("name", "text"), [("x.parquet", "no"), ("x.json", "[1,")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        run_length.count_rows(str(tmp_path / name))
    with pytest.raises(FileNotFoundError, match="no data file"):
        run_length.count_rows(str(tmp_path / "missing.parquet"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "trainer.total_training_steps: must be given, or trainer.total_epochs"),
        (("trainer.total_epochs=0",), "trainer.total_epochs: must be positive: 0"),
        (("trainer.total_training_steps=-1",), "trainer.total_training_steps: must be positive: -1"),
        (
            ("trainer.total_epochs=2", "data.filter_overlong_prompts=true"),
            "trainer.total_epochs: with data.filter_overlong_prompts=true the number of prompts is known only after",
        ),
    ],
)
def test_a_length_that_cannot_be_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(configuration.SettingsError) as caught:
        load("t", *overrides)
    assert str(caught.value).startswith(message)
