"""The page that compares runs."""

import json
import re
from pathlib import Path

import pytest
import torch

from verl_omni.trainer.report import comparison
from verl_omni.trainer.report.__main__ import main
from verl_omni.trainer.report.run_data import Event, Image, Line, Run, load
from verl_omni.trainer.run.run_folder import RunFolder, ShownSample


def image(prompt: str, seed: int = 0) -> Image:
    return Image(prompt, seed, 0.5, f"data:image/png;base64,{prompt}", 8, 8)


def test_only_settings_that_differ_are_listed_without_the_names_of_the_runs() -> None:
    first = {"trainer": {"seed": 0, "experiment_name": "a"}, "data": {"shuffle": True, "files": ["x"]}, "old": {"a": 1}}
    second = {"trainer": {"seed": 1, "experiment_name": "b"}, "data": {"shuffle": False, "files": ["y"]}}
    assert comparison.differences([first, second]) == {
        "data.files": ["[x]", "[y]"],
        "old.a": ["1", "–"],
        "trainer.seed": ["0", "1"],
        "data.shuffle": ["true", "false"],
    }
    assert comparison.differences([first, first]) == {}


def test_images_are_of_prompts_that_all_runs_have_from_the_same_seed() -> None:
    first = Run("a", images={2: [image("old")], 4: [image("cat"), image("cat", 1), image("dog", 3), image("cow")]})
    second = Run("b", images={6: [image("cow"), image("dog", 4), image("cat", 1), image("cat")]})
    rows = comparison.image_rows([first, second])
    assert sorted((row.prompt, len(row.images)) for row in rows) == [("cat", 2), ("cow", 2)]
    assert comparison.image_rows([first, Run("c")]) == []


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 8 runs can be compared, not 9"):
        comparison.write([tmp_path] * 9, tmp_path / "out.html")


@pytest.mark.slow
def test_a_page_has_the_curves_of_every_run_and_escapes_their_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "<b>other"
    folder = RunFolder(second)
    for step in (1, 2):
        folder.step({"step": step, "reward/mean": 0.3, "actor/grad_norm": 1.0, "val/n": 1})
    folder.samples(2, [ShownSample('a "dog" & a cat', 8, 0.5, torch.zeros((3, 8, 8), dtype=torch.uint8))], 24)
    out = tmp_path / "comparison.html"
    assert main([str(run), str(second), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    page = out.read_text()
    page_text = page[: page.index("plotly.js")] + page[page.rindex("</script>") :]
    assert "&lt;b&gt;other" in page_text and "<b>other" not in page_text
    assert not re.search(r"<script[^>]*src|<link[^>]*stylesheet|@import", page_text)
    figures = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    names = [[trace["name"] for trace in figure["data"]] for figure in figures]
    assert names[0] == ["demo", "demo, held-out", "<b>other"]
    assert ["demo", "<b>other"] in names[1:], "the gradient norm, which both measured"
    assert page.count('<img src="data:image/png') == 2, "one image of each run"
    assert load(run).steps() and "actor_rollout_ref.rollout.n" in page


@pytest.mark.slow
def test_a_run_that_failed_and_one_that_is_not_complete_say_so() -> None:
    lines: list[Line] = [{"step": float(step), "reward/mean": 0.1 * step} for step in (1, 2)]
    start = Event(event="start", total_steps=9)
    page = comparison.render(
        {
            "good": Run("good", lines, events=[Event(event="start", total_steps=2)]),
            "lost": Run("lost", lines, events=[start, Event(event="error", message="no <memory>")]),
            "begun": Run("begun", lines, events=[start]),
        }
    )
    assert page.count('<p class="warn">Failed at step 2 of 9: no &lt;memory&gt;</p>') == 1
    assert "<p>Completed all 2 steps.</p>" in page
    assert "<p>At step 2 of 9: still running, or ended without a final event.</p>" in page


@pytest.mark.slow
def test_a_malformed_run_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "metrics.jsonl").write_text("no json\n")
    assert main([str(run), str(broken)]) == 1
    assert "broken" in capsys.readouterr().err
    assert not Path("comparison.html").exists()


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.html").mkdir()
    assert main([str(run), str(run), "--out", str(tmp_path / "out.html")]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0][: len(str(tmp_path))]) == ("", str(tmp_path))
    assert "out.html was not written: [Errno 21] Is a directory" in printed.err and printed.err.count("\n") == 1
