"""The page: self-contained, escaped, the same for the same run, whole or not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer import report
from verl_omni.trainer.report.__main__ import main
from verl_omni.trainer.report.load import Run, load
from verl_omni.trainer.report.plots import BARS_AT_MOST, INK, phases
from verl_omni.trainer.report.write import page

pytestmark = pytest.mark.slow  # draws a page for each


def test_a_page_needs_nothing_else(run: Path) -> None:
    text = report.write(run).read_text()
    assert "<script" not in text
    assert set(re.findall(r'(?:src|href)="([a-z]+:|#)', text)) <= {"data:", "#"}
    assert "@import" not in text
    assert 'url("' not in text


def test_text_from_outside_is_escaped(run: Path) -> None:
    (run / "overrides.txt").write_text("name=</pre><script>alert(1)</script>\n")
    text = report.write(run).read_text()
    assert "a &lt;b&gt;cat&lt;/b&gt;" in text
    assert "<b>cat" not in text
    assert "<script" not in text


def test_every_picture_and_every_plot_says_what_it_is(run: Path) -> None:
    text = report.write(run).read_text()
    pictures = re.findall(r'<img [^>]*alt="([^"]*)"', text)
    assert len(pictures) == text.count("<img ") == 6
    assert "a &lt;b&gt;cat&lt;/b&gt; (seed 7), step 4, reward 0.40" in pictures
    labels = re.findall(r'role="img" aria-label="([^"]+)"', text)
    assert len(labels) == text.count("<svg") == 6
    assert len(set(labels)) == 6


def test_no_identifier_is_there_twice(run: Path) -> None:
    text = page(load(run))
    found = re.findall(r'\bid="([^"]+)"', text)
    assert found
    assert len(found) == len(set(found))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', text)) <= set(found)


def test_plots_take_the_colour_of_the_text(run: Path) -> None:
    text = page(load(run))
    assert "currentColor" in text
    assert INK not in text


def test_the_same_run_gives_the_same_page(run: Path) -> None:
    assert page(load(run)) == page(load(run))


def test_the_old_page_stays_until_the_new_one_is_whole(run: Path) -> None:
    before = report.write(run).read_text()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"reward": 1}\n')
    with pytest.raises(ValueError, match="has no step"):
        report.write(run)
    assert (run / "report.html").read_text() == before
    assert list(run.glob(".report*")) == []


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    text = report.write(tmp_path).read_text()
    assert "0 training steps; nothing was evaluated" in text
    assert "Nothing was recorded in this folder." in text
    assert "No pictures were kept." in text
    assert "Nothing was measured yet." in text
    assert "<svg" not in text


def test_a_run_that_only_evaluated_shows_it(begun: Callable[..., Any]) -> None:
    text = report.write(begun(last=0).path).read_text()
    assert "No training step was finished." in text
    assert "Where the time goes" not in text
    assert text.count("<img ") == 2


def test_a_picture_that_was_not_kept_leaves_its_place(run: Path) -> None:
    (run / "samples/step_000002/00.png").unlink()
    text = report.write(run).read_text()
    assert text.count("not kept") == 1
    assert "1 picture could not be read and is left out." in text


def test_values_that_were_not_finite_are_gaps(begun: Callable[..., Any]) -> None:
    folder = begun(last=4)
    folder.step({"step": 5, "reward/mean": float("nan"), "weights/version": 5})
    folder.step({"step": 6, "weights/version": 6, "reward/mean": 0.5, "reward/std": float("inf")})
    assert "1 step without a record: 5." in report.write(folder.path).read_text()


def test_a_long_run_stays_small() -> None:
    lines: list[dict[str, float | None]] = [
        {"step": step, "reward/mean": 0.5, "timing_s/generate": 1.0 + step % 3, "timing_s/step": 5.0}
        for step in range(1, 20 * BARS_AT_MOST)
    ]
    assert phases("phases", lines).count("<path") < 60
    assert len(page(Run("long", lines=lines))) < 2_000_000


def test_it_is_a_program(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    (run / "versions.json").write_text("[]")
    assert main([str(run)]) == 1
    assert "versions.json is not what it should be" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "none")])
    assert ended.value.code == 2
