"""The tutorial docs/start/own-reward.md: its function scores, its job is valid, and a misspelt setting is refused."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from omni_operator import plan
from omni_operator.api import load_job

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "start" / "own-reward.md"


def blocks(language: str) -> list[str]:
    tutorial = PAGE.read_text(encoding="utf-8").partition("\n## Your own reward server\n")[0]
    return re.findall(rf"```{language}\n(.*?)```", tutorial, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader has after step 3; the paths of the copied job are made absolute."""
    function, _ = blocks("python")
    (reward,) = blocks("yaml")
    (tmp_path / "contrast.py").write_text(function)
    job: dict[str, Any] = YAML(typ="safe").load(ROOT / "examples" / "red-grpo.yaml")
    job["metadata"]["name"] = "my-job"
    job["spec"].update(YAML(typ="safe").load(reward))
    YAML().dump(job, tmp_path / "my-job.yaml")
    return tmp_path


def problems(path: Path) -> list[str]:
    """What the trainer refuses of the job's reward."""
    from verl_omni.trainer.settings import configuration, reward_settings

    job = plan.resolve_paths(load_job(path).job, str(path.parent))
    config = configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs")))
    return reward_settings.find_problems(config.reward)


def test_the_function_scores_as_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, trial = blocks("python")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    exec(compile(trial, str(PAGE), "exec"), {"__name__": "__main__"})
    assert Path(sys.modules.pop("contrast").__file__ or "").parent == folder
    assert trial.count("assert") == 3


def test_the_trainer_takes_the_job(folder: Path) -> None:
    assert problems(folder / "my-job.yaml") == []
    (scorer,) = load_job(folder / "my-job.yaml").job.spec.reward.scorers
    assert scorer.function.path == "contrast.py"


def test_a_misspelt_setting_and_a_missing_file_are_refused_before_anything_starts(folder: Path) -> None:
    path = folder / "my-job.yaml"
    path.write_text(path.read_text().replace("target:", "tarjet:"))
    (problem,) = problems(path)
    assert problem.endswith("contrast.tarjet: unknown setting; did you mean target?")
    (folder / "contrast.py").unlink()
    (problem,) = problems(path)
    assert "contrast.py" in problem


def test_a_second_scorer_as_the_page_writes_it(folder: Path) -> None:
    path = folder / "my-job.yaml"
    (entry,) = re.findall(r"`- (\{name: color.*?\})`", PAGE.read_text(encoding="utf-8"))
    job: dict[str, Any] = YAML(typ="safe").load(path)
    job["spec"]["reward"]["scorers"].append(YAML(typ="safe").load(entry))
    YAML().dump(job, path)
    assert problems(path) == []
