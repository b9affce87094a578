"""Jobs: reading, refusing with words, rendering."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_operator.api.load import InvalidJob, load
from omni_operator.plan.overrides import ReservedOverride, overrides, quoted

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))
MINIMAL = """apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: job}
spec:
  model: {base: model}
  data: {train: prompts.jsonl}
  reward: {scorer: jpeg}
  trainer: {steps: 3}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_job(path: Path) -> None:
    assert overrides(load(path), folder=path.parent, run="runs/x")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("steps: 3", "stps: 3", "job.yaml:8: spec.trainer.stps: unknown field; did you mean 'steps'?"),
        ("steps: 3", "steps: 0", "job.yaml:8: spec.trainer.steps: input should be greater than or equal to 1"),
        ("trainer: {steps: 3}", "", "spec.trainer: must be given"),
        ("{scorer: jpeg}", "{scorer: jpg}", "job.yaml:7: spec.reward: unknown scorer 'jpg'"),
        ("{scorer: jpeg}", "{}", "give exactly one of scorer, path and functions, not none"),
        ("name: job", "name: Job_1", "job.yaml:3: metadata.name: string should match"),
        ("steps: 3", "steps: 3, promptsPerStep: 3}\n  rollout: {replicas: 5", "cannot be divided among 5"),
        ("{base: model}", "{base: model}\n  weightSync: {payload: LoRA}", "payload LoRA needs model.lora"),
        ("spec:", "spec: [", "job.yaml:"),
    ],
)
def test_errors_name_file_line_and_remedy(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidJob) as error:
        load(written(tmp_path, MINIMAL.replace(old, new)))
    assert said in str(error.value)


def test_all_errors_are_shown_at_once(tmp_path: Path) -> None:
    text = MINIMAL.replace("steps: 3", "stps: 3").replace("scorer: jpeg", "scorer: jpg")
    with pytest.raises(InvalidJob) as error:
        load(written(tmp_path, text))
    assert len(str(error.value).splitlines()) == 3


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="no such file"):
        load(tmp_path / "none.yaml")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    job = load(written(tmp_path, MINIMAL))
    assert f"actor_rollout_ref.model.path='{tmp_path / 'model'}'" in overrides(job, folder=tmp_path, run="r")


def test_reserved_settings_are_refused(tmp_path: Path) -> None:
    text = MINIMAL.replace("  data:", "  algorithm: {overrides: [trainer.default_local_dir=x]}\n  data:")
    with pytest.raises(ReservedOverride, match=r"trainer\.default_local_dir is decided"):
        overrides(load(written(tmp_path, text)), folder=tmp_path, run="r")


def test_values_are_quoted_for_hydra() -> None:
    assert quoted("it's") == r"'it\'s'"
    assert quoted([1, None, True, 0.5]) == "[1,null,true,0.5]"
    assert quoted({"a": "b"}) == "{a:'b'}"
