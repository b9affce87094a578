"""The pages of benchmarks and of `drl fit` match their raw data, and the calculations of the programs are correct."""

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer.memory_estimate import public_models

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of `benchmarks/` by the name of its file, as these programs import one another."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.mark.slow
def test_the_committed_page_matches_the_committed_data(program: Any) -> None:
    files = program("page").generated(DOCS / "figures")
    stale = [name for name, text in files.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run: python benchmarks/page.py"
    assert set(files) >= {"contribute/benchmarks.md", "figures/batching.svg"}


def test_the_tables_of_budgets_match_the_committed_data(program: Any) -> None:
    page = (DOCS / "contribute" / "evidence.md").read_text(encoding="utf-8")
    budgets = program("budgets_page")
    assert all(f"<!-- {name} -->" in page for name in budgets.TABLES)
    with_tables = program("page_tables").with_tables
    assert with_tables(page, budgets.TABLES, DOCS / "figures") == page, "run: python benchmarks/operator_scale.py"
    emptied = page.replace("p99", "p98")
    assert with_tables(emptied, budgets.TABLES, DOCS / "figures") == page


def test_the_tables_of_the_estimates_match_the_committed_data(program: Any) -> None:
    for path, tables in (program("fit_page").ACCURACY, program("fit_page").MODELS):
        page = path.read_text(encoding="utf-8")
        assert program("page_tables").with_tables(page, tables, DOCS / "figures") == page, (
            "run: python benchmarks/fit_models.py"
        )
    fit_models = program("fit_models")
    data = json.loads((DOCS / "figures" / "fit_models.json").read_text(encoding="utf-8"))
    assert [data["settings"], data["image"], data["video"]] == [
        list(overrides) for overrides in (fit_models.USUAL, fit_models.IMAGE, fit_models.VIDEO)
    ]
    assert fit_models.DEVICES == (1, 8), "as the page says"
    estimated = Counter(row["model"] for row in data["runs"])
    assert estimated == dict.fromkeys(public_models.MODELS, len(fit_models.DEVICES))


def test_the_page_lists_missed_targets(program: Any, tmp_path: Path) -> None:
    data = json.loads((DOCS / "figures" / "reward_overlap.json").read_text(encoding="utf-8"))
    pages = {}
    for over in (1.1, 1.2):
        data["runs"][0]["over_ideal"] = over
        for row in data["runs"][1:]:
            row["over_ideal"] = 1.0
        (tmp_path / "reward_overlap.json").write_text(json.dumps(data), encoding="utf-8")
        pages[over] = program("page").generated(tmp_path)["contribute/benchmarks.md"]
    target = "within 10% of max(g, r) / (g + r)"
    assert f"- Target met: {target}; the largest median is 1.1 times it." in pages[1.1]
    assert "missed" not in pages[1.1].lower()
    assert f"- **Target missed**: {target}; the largest median is 1.2 times it." in pages[1.2]
    top = pages[1.2].partition("## Training")[0]
    assert "## Missed targets\n\n- Overlapped rewards take up to 1.2 times the ideal time; the target is 1.1." in top


def test_the_main_example_is_judged_by_its_gain_its_time_and_a_control_that_learns_nothing(
    program: Any, tmp_path: Path
) -> None:
    def page_text(**slower: float) -> str:
        data = json.loads((DOCS / "figures" / "colors-grpo.json").read_text(encoding="utf-8"))
        control = next(row for row in data["runs"] if row["control"])
        control["held_out"][-1]["correct/mean"] += slower.get("learnt", 0.0)
        control["seconds"] = slower.get("seconds", control["seconds"])
        (tmp_path / "colors-grpo.json").write_text(json.dumps(data), encoding="utf-8")
        return " ".join(program("page").generated(tmp_path)["contribute/benchmarks.md"].split())

    target = "25 points more right over three seeds, and less for none, in at most 10 minutes (the slowest run took "
    assert f"- Target met: {target}8.4); none with learning rate 0." in page_text()
    assert f"- **Target missed**: {target}10.1); none with learning rate 0." in page_text(seconds=604.0)
    assert "- **Target missed**: 25 points more right" in page_text(learnt=0.05)


def test_the_page_says_what_is_not_measured(program: Any, tmp_path: Path) -> None:
    page = program("page")
    files = page.generated(tmp_path)
    assert list(files) == ["contribute/benchmarks.md"]
    entries = page.TRAINING | page.ROLLOUT
    assert files["contribute/benchmarks.md"].count("Not measured yet (`python benchmarks/") == len(entries)
    for _, _, command in entries.values():
        assert f"Not measured yet (`python benchmarks/{command}`)." in files["contribute/benchmarks.md"]


def test_each_section_names_a_program_that_exists(program: Any) -> None:
    page = program("page")
    commands = [command for _, _, command in (page.TRAINING | page.ROLLOUT).values()]
    assert all((ROOT / "benchmarks" / command.split()[0]).is_file() for command in commands)


def test_the_table_of_peers_has_the_median_of_each_program_and_mode(program: Any) -> None:
    figures = {name: 1.0 for _, name, _, _ in program("training_sections").PEER_ROWS}
    rows = [
        {"program": name, "turn": turn, "mode": mode, **figures, "step_seconds": seconds + turn}
        for turn in range(3)
        for mode, seconds in (("one", 5.0), ("default", 3.0), ("memory", 4.0))
        for name in ("plain loop", "here")
    ]
    columns, lines = program("training_sections").peers_table({"runs": rows})
    assert columns == ["", "plain loop", "here"]
    assert lines[0][1:] == ["6 (5-7)"] * 2
    assert lines[1][1:] == ["4 (3-5)"] * 2
    slower = [{**row, "cpu_seconds_a_step": 1.3 if row["program"] == "here" else 1.0} for row in rows]
    (missed,) = program("training_sections").missed_peers({"runs": slower})
    assert missed == "Next to plain loop, CPU seconds a step: 1.3 times its value; the target is 1.25."


def test_the_programs_of_peers_get_the_example_in_the_same_sizes(program: Any, tmp_path: Path) -> None:
    peers = program("peers")
    job = peers.read_example(64, 8, 20, tmp_path)
    assert (job.images, job.denoising_steps, job.window, job.lora_rank) == (128, 9, 4, 16)
    commands = peers.commands(job, tmp_path, tmp_path / "checkout")
    assert list(commands) == ["plain loop", "flow_grpo", "here"]
    assert "flow_grpo" not in peers.commands(job, tmp_path, None)
    assert program("peer_job").read_job(str(tmp_path / "job.json")) == job
    assert "spec.trainer.batch.prompts=8" in commands["here"]
