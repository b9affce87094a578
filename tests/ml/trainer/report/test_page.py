"""The page: self-contained, escaped, complete or absent; warnings at its top."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plotly.offline import get_plotlyjs

from verl_omni.trainer import report
from verl_omni.trainer.report.__main__ import main
from verl_omni.trainer.report.page import render
from verl_omni.trainer.report.plots import MOST_BARS
from verl_omni.trainer.report.run_data import Event, Run
from verl_omni.trainer.run.run_folder import RunFolder, ShownSample

pytestmark = pytest.mark.slow  # renders a page for each test
PLOTS = 8


def own_text(page: str) -> str:
    """The page without plotly.js, which must be in it once."""
    assert page.count(get_plotlyjs()) == 1
    return page.replace(get_plotlyjs(), "")


def figures(page: str) -> list[dict[str, Any]]:
    """The data of the plots."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


def test_a_page_loads_nothing_else(run: Path) -> None:
    text = own_text(report.write(run).read_text())
    assert set(re.findall(r'(?:src|href)="([a-z]+:|#)', text)) <= {"data:", "#"}
    assert not re.search(r"<script[^>]*src|<link[^>]*stylesheet|@import|https?://", text)


def test_a_page_with_plotly_has_a_modest_size(run: Path) -> None:
    assert report.write(run).stat().st_size - len(get_plotlyjs().encode()) < 100_000


def test_text_from_outside_is_escaped(run: Path) -> None:
    (run / "overrides.txt").write_text("name=</pre><script>alert(1)</script>\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "actor/</script><script>alert(2)</script>": 1}\n')
    text = own_text(report.write(run).read_text())
    assert "a &lt;b&gt;cat&lt;/b&gt;" in text
    assert "<b>cat" not in text
    assert "<script>alert" not in text


def test_every_image_and_every_plot_has_a_description(run: Path) -> None:
    text = own_text(report.write(run).read_text())
    images = re.findall(r'<img [^>]*alt="([^"]*)"', text)
    assert len(images) == text.count("<img ") == 6
    assert "a &lt;b&gt;cat&lt;/b&gt; (seed 7), step 4, reward 0.40" in images
    labels = re.findall(r'role="img" aria-label="([^"]+)"', text)
    assert len(labels) == len(figures(text)) == PLOTS
    assert len(set(labels)) == PLOTS


def test_the_previous_page_stays_until_the_new_one_is_complete(run: Path) -> None:
    before = report.write(run).read_text()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"reward": 1}\n')
    with pytest.raises(ValueError, match="has no valid step"):
        report.write(run)
    assert (run / "report.html").read_text() == before
    assert list(run.glob(".report*")) == []


def test_a_run_with_only_an_evaluation_shows_it(begun: Callable[..., Any]) -> None:
    text = own_text(report.write(begun(last=0).path).read_text())
    assert "the only evaluation" in text
    assert "<h2>Engine and trainer</h2>" not in text
    assert "<h2>Policy update</h2>" not in text
    assert text.count("<img ") == 2


def test_a_prompt_of_any_language_length_and_form_is_shown(begun: Callable[..., Any]) -> None:
    folder = begun(last=0)
    black = torch.zeros(3, 8, 8, dtype=torch.uint8)
    folder.samples(0, [ShownSample(prompt, number, 0.5, black) for number, prompt in enumerate(["قطة حمراء", ""])], 24)
    text = own_text(report.write(folder.path).read_text())
    assert '<h3 class="prompt" dir="auto">قطة حمراء</h3>' in text
    assert '<h3 class="prompt soft" dir="auto">empty prompt</h3>' in text


def test_a_video_is_linked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.step({"step": 0, "val/reward/mean": 0.5})
    video = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    folder.samples(0, [ShownSample("a walk", 7, 0.5, video)], 24)
    text = report.write(tmp_path).read_text(encoding="utf-8")
    assert '<a href="samples/step_000000/00.webp">video</a>' in text and "up to four frames in a row" in text
    assert (tmp_path / "samples/step_000000/00.webp").is_file()


WARNING = {
    "reason": "SamplesCollapsed",
    "step": 3,
    "message": "the reward's standard deviation is 0.0001 <for 3 steps>",
}


def above_the_results(page: str) -> str:
    """What stands between the title and the summary."""
    return page.partition("</h1>")[2].partition('<p class="summary">')[0]


def test_a_collapsed_run_says_so_at_the_top(begun: Callable[..., Any]) -> None:
    folder = begun()
    folder.event("warning", **WARNING)
    folder.event("warning", message="no report: disk full")
    top = above_the_results(report.write(folder.path).read_text())
    assert "<h2>Warning: SamplesCollapsed</h2>" in top
    assert "The samples of this run collapsed: the images of different prompts became alike" in top
    assert "<li>Step 3: the reward&#39;s standard deviation is 0.0001 &lt;for 3 steps&gt;</li>" in top
    assert "<li>Step 4: no report: disk full</li>" in top


def test_a_failed_run_says_so_at_the_top(begun: Callable[..., Any]) -> None:
    folder = begun(last=2)
    folder.event("error", message="no memory", kind="OutOfMemoryError", reason="OutOfMemory")
    text = report.write(folder.path).read_text()
    assert "<h2>The run failed</h2><p>Failed at step 2 of 4: no memory</p>" in above_the_results(text)
    assert text.count("Failed at step") == 1


def test_a_long_run_stays_small() -> None:
    lines: list[dict[str, float | None]] = [
        {"step": step, "reward/mean": 0.5, "timing_s/generate": 1.0 + step % 3, "timing_s/step": 5.0}
        for step in range(1, 20 * MOST_BARS)
    ]
    text = own_text(render(Run("long", lines=lines)))
    assert len(text) < 500_000
    assert '"type":"bar"' not in text
    assert '"type":"bar"' in render(Run("short", lines=lines[:MOST_BARS]))


def test_the_command_prints_the_path_of_the_report(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    (run / "versions.json").write_text("[]")
    assert main([str(run)]) == 1
    assert "versions.json is malformed" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "none")])
    assert ended.value.code == 2


def test_events_other_than_warnings_are_not_alerts() -> None:
    events = [Event(event="start", total_steps=1), Event(event="checkpoint", step=1, message="saved")]
    assert 'role="alert"' not in own_text(render(Run("r", events=events)))
