"""A run folder is parsed at the door: torn lines, steps made again, wrong files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.trainer.report.load import events, load, merged, png_size

finite = st.floats(allow_nan=False, allow_infinity=False)
lines = st.fixed_dictionaries({"step": st.integers(0, 9)}, optional={"reward/mean": finite | st.none()})


@given(st.lists(st.integers(0, 9), max_size=20))
def test_of_a_step_made_again_the_last_line_counts(steps: list[int]) -> None:
    text = "".join(json.dumps({"step": step, "place": place}) + "\n" for place, step in enumerate(steps))
    found = merged(text + '{"step": 3, "cut')
    assert [line["step"] for line in found] == sorted(set(steps))
    assert all(line["place"] == max(p for p, s in enumerate(steps) if s == line["step"]) for line in found)


@given(st.lists(lines, max_size=8), st.integers(0))
def test_metrics_cut_off_anywhere_are_the_whole_lines_before_the_cut(made: list[Any], place: int) -> None:
    text = "".join(json.dumps(line) + "\n" for line in made)
    cut = text[: place % (len(text) + 1)]
    assert merged(cut) == merged("".join(json.dumps(line) + "\n" for line in made[: cut.count("\n")]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"reward": 1}\n', "has no step"),
        ('{"step": null}\n', "has no step"),
        ('{"step": -1}\n', "has no step"),
        ('{"step": 1.5}\n', "has no step"),
        ('{"step": 1, "reward/mean": "high"}\n', "no object of numbers"),
        ("[1]\n", "no object of numbers"),
        ("step 1\n", "no object of numbers"),
    ],
)
def test_a_line_that_is_no_step_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merged(text)


@given(st.text())
def test_no_text_of_events_is_a_failure(text: str) -> None:
    assert all(event.event is not None for event in events(text))


def test_an_event_that_a_kill_cut_off_is_left_out() -> None:
    text = '{"event": "start", "total_steps": 4}\n{"event": "st{"event": "start"}\n{"event": "done", "step": 4}\n'
    assert [event.event for event in events(text)] == ["start", "done"]


@given(st.binary(max_size=40))
def test_only_a_png_has_a_size(data: bytes) -> None:
    assert png_size(data) is None
    header = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
    assert png_size(header + data) == (640, 480)


def test_pictures_come_with_prompt_seed_score_and_size(run: Path) -> None:
    found = load(run)
    assert list(found.samples) == [0, 2, 4]
    shown = found.samples[4][1]
    assert (shown.prompt, shown.seed, shown.score, shown.width, shown.height) == ('a "dog" & a cat', 8, 0.4, 8, 8)
    assert shown.data.startswith("data:image/png;base64,")


def test_a_picture_that_is_missing_or_broken_is_counted(run: Path) -> None:
    (run / "samples/step_000000/00.png").unlink()
    (run / "samples/step_000002/01.png").write_bytes(b"GIF89a")
    found = load(run)
    assert found.unreadable_pictures == 2
    assert [len(shown) for shown in found.samples.values()] == [1, 1, 2]


@pytest.mark.parametrize("file", ["../../secret.png", "/etc/hosts", "a/b.png", ".png", "picture.svg"])
def test_an_index_names_pictures_of_its_own_folder_only(run: Path, file: str) -> None:
    entry = {"file": file, "prompt": "a", "seed": 1, "score": 0.0}
    (run / "samples/step_000000/index.json").write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match=r"index\.json is not what it should be"):
        load(run)


def test_folders_that_are_no_evaluation_are_passed_over(run: Path) -> None:
    (run / "samples" / "step_new").mkdir()
    assert list(load(run).samples) == [0, 2, 4]


def test_a_resumed_run_is_one_run(begun: Callable[..., Any]) -> None:
    begun(last=3)
    found = load(begun(last=4, resumed_from=2).path)
    assert [line["step"] for line in found.lines] == [0, 1, 2, 3, 4]
    assert [event.resumed_from for event in found.events if event.event == "start"] == [None, 2]
