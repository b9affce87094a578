"""Parsing of a run folder: incomplete lines, repeated steps, malformed files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.trainer.report.run_data import MOST_COLUMNS, load, parse_events, parse_metrics

finite = st.floats(allow_nan=False, allow_infinity=False)
lines = st.fixed_dictionaries({"step": st.integers(0, 9)}, optional={"reward/mean": finite | st.none()})


@given(st.lists(st.integers(0, 9), max_size=20))
def test_the_last_line_of_a_repeated_step_counts(steps: list[int]) -> None:
    text = "".join(json.dumps({"step": step, "place": place}) + "\n" for place, step in enumerate(steps))
    lines = parse_metrics(text + '{"step": 3, "cut')
    assert [line["step"] for line in lines] == sorted(set(steps))
    assert all(line["place"] == max(p for p, s in enumerate(steps) if s == line["step"]) for line in lines)


@given(st.lists(lines, max_size=8), st.integers(0))
def test_truncated_metrics_keep_their_complete_lines(made: list[Any], place: int) -> None:
    text = "".join(json.dumps(line) + "\n" for line in made)
    cut = text[: place % (len(text) + 1)]
    assert parse_metrics(cut) == parse_metrics("".join(json.dumps(line) + "\n" for line in made[: cut.count("\n")]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"reward": 1}\n', "has no valid step"),
        ('{"step": null}\n', "has no valid step"),
        ('{"step": -1}\n', "has no valid step"),
        ('{"step": 1.5}\n', "has no valid step"),
        ('{"step": 1, "reward/mean": "high"}\n', "not a JSON object of numbers"),
        ("[1]\n", "not a JSON object of numbers"),
        ("step 1\n", "not a JSON object of numbers"),
    ],
)
def test_a_malformed_line_of_metrics_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_metrics(text)


@given(st.text())
def test_events_never_fail_to_parse(text: str) -> None:
    assert all(event.event is not None for event in parse_events(text))


def test_an_incomplete_event_is_skipped() -> None:
    text = '{"event": "start", "total_steps": 4}\n{"event": "st{"event": "start"}\n{"event": "done", "step": 4}\n'
    assert [event.event for event in parse_events(text)] == ["start", "done"]


def test_missing_and_malformed_images_are_counted(run: Path) -> None:
    (run / "samples/step_000000/00.png").unlink()
    (run / "samples/step_000002/01.png").write_bytes(b"GIF89a")
    loaded = load(run)
    assert loaded.unreadable_images == 2
    assert [len(images) for images in loaded.images.values()] == [1, 1, 2]


@pytest.mark.parametrize("file", ["../../secret.png", "/etc/hosts", "a/b.png", ".png", "picture.svg"])
def test_an_index_cannot_name_a_file_outside_its_folder(run: Path, file: str) -> None:
    entry = {"file": file, "prompt": "a", "seed": 1, "score": 0.0}
    (run / "samples/step_000000/index.json").write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match=r"index\.json is malformed"):
        load(run)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "text"])
def test_malformed_settings_are_refused(run: Path, text: str) -> None:
    (run / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml is malformed"):
        load(run)


def test_a_resumed_run_is_one_run(begun: Callable[..., Any]) -> None:
    begun(last=3)
    loaded = load(begun(last=4, resumed_from=2).path)
    assert [line["step"] for line in loaded.lines] == [0, 1, 2, 3, 4]
    assert [event.resumed_from for event in loaded.events if event.event == "start"] == [None, 2]


@pytest.mark.parametrize(("resumed_from", "step"), [(None, 0), (1, 2)])
def test_what_an_earlier_run_left_in_the_folder_is_not_of_this_one(
    begun: Callable[..., Any], resumed_from: int | None, step: int
) -> None:
    """As with `trainer.resume_mode=disable`, or a checkpoint of another run."""
    begun(last=4).event("warning", reason="SamplesCollapsed", message="m", step=4)
    loaded = load(begun(last=step, resumed_from=resumed_from, continues=False).path)
    assert [line["step"] for line in loaded.lines] == list(loaded.images) == [step]
    assert [event.event for event in loaded.events] == ["start", "step"]


def test_of_a_long_run_only_the_images_that_are_shown_are_read(begun: Callable[..., Any]) -> None:
    run = begun(last=38, total=38).path
    (run / "samples/step_000006/00.png").write_bytes(b"GIF89a")
    loaded = load(run)
    assert len(loaded.images) == MOST_COLUMNS and {0, 38} < loaded.images.keys(), (
        "evenly spaced, with the first and the last"
    )
    assert loaded.unreadable_images == 1, "an image that is not shown is checked too"
