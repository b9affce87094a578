"""The run folder before a run: of a job that was moved or changed, and where it cannot be written."""

import errno
import json
import resource
import shutil
from pathlib import Path

import pytest

from omni_operator import plan
from omni_operator.api.files.job_loader import load_job
from omni_operator.cli import console
from omni_operator.cli.local import run_folder
from omni_operator.staged_files import PREFIX

JOB = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {{name: a-job}}
spec:
  model: {{base: ./model, lora: {{startFrom: ./sft}}}}
  data: {{train: [prompts/train.jsonl, {shared}], validation: [held.jsonl]}}
  reward:
    model: {{base: ./judge}}
    scorers:
    - {{name: mine, function: {{path: reward.py}}, pool: {{python: env/bin/python}}}}
    - {{name: aesthetic, settings: {{head_path: head.pth, model_name_or_path: ./clip}}}}
  trainer: {{totalSteps: {steps}, learningRate: {rate}}}
"""


def prepare(project: Path, runs: Path | None = None, *, steps: int = 3, rate: float = 0.1) -> Path:
    """Prepare the run folder of a job in a project, whose second file of prompts is elsewhere, and train one step."""
    project.mkdir(exist_ok=True)
    path = project / "job.yaml"
    path.write_text(JOB.format(shared="/data/shared.jsonl", steps=steps, rate=rate))
    loaded = load_job(path)
    job = plan.resolve_paths(loaded.job, str(project))
    layout = plan.local_layout(job, str(runs or project / "runs"))
    folder = Path(layout.run_folder)
    run_folder.prepare(folder, job, loaded.document, lambda each: plan.render_overrides(each, layout), fresh=False)
    assert plan.resolve_paths(load_job(folder / run_folder.JOB).job, "/elsewhere") == job, "the copy is the same job"
    (folder / run_folder.METRICS).write_text('{"step": 1}\n')
    return folder


@pytest.mark.parametrize("name", ["other", "other project"])
def test_a_project_that_was_moved_or_copied_with_its_runs_resumes(tmp_path: Path, name: str) -> None:
    prepare(tmp_path / "first project")
    shutil.copytree(tmp_path / "first project", tmp_path / name)
    written = (prepare(tmp_path / name) / run_folder.JOB).read_text()
    assert all(str(tmp_path / name / path) in written for path in ("model", "sft"))
    (tmp_path / name).rename(tmp_path / "moved")
    prepare(tmp_path / "moved", steps=5)


def test_a_run_folder_that_was_moved_alone_resumes(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "project")
    (tmp_path / "large").mkdir()
    folder.rename(tmp_path / "large" / folder.name)
    prepare(tmp_path / "project", tmp_path / "large")


def test_a_run_folder_of_another_project_is_of_another_job(tmp_path: Path) -> None:
    prepare(tmp_path / "one", tmp_path / "runs")
    fields = (
        "data.train",
        "data.validation",
        "model.base",
        "model.lora.startFrom",
        "reward.model.base",
        "reward.scorers",
    )
    differ = "".join(f"  spec.{field}\n" for field in fields)
    with pytest.raises(run_folder.RunFolderError, match=f"differ:\n{differ}"):
        prepare(tmp_path / "two", tmp_path / "runs")


def test_of_a_changed_job_only_the_fields_that_prevent_a_resume_are_named(tmp_path: Path) -> None:
    prepare(tmp_path / "project")
    with pytest.raises(run_folder.RunFolderError, match=r"differ:\n  spec\.trainer\.learningRate\nto start"):
        prepare(tmp_path / "project", steps=9, rate=0.2)
    shutil.move(tmp_path / "project", tmp_path / "moved")
    with pytest.raises(run_folder.RunFolderError, match=r"differ:\n  spec\.trainer\.learningRate\nto start"):
        prepare(tmp_path / "moved", rate=0.2)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_run_folder_that_is_no_folder_is_named(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "runs" / "a-job"
    run.parent.mkdir()
    if kind == "file":
        run.touch()
    else:
        run.symlink_to(tmp_path / "absent")
    with pytest.raises(run_folder.RunFolderError, match=r"cannot use .*runs/a-job: .*; choose another --runs or"):
        prepare(tmp_path / "project", tmp_path / "runs")


def test_a_full_disk_leaves_the_job_of_the_run_folder(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "project")
    before = {name: (folder / name).read_text() for name in (run_folder.JOB, run_folder.OVERRIDES)}
    loaded = load_job(tmp_path / "project" / "job.yaml")
    job = plan.resolve_paths(loaded.job, str(tmp_path / "project"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # Python ignores the signal, so that writes fail
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            run_folder.prepare(folder, job, loaded.document, lambda _: ["a=b"], fresh=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert raised.value.errno in console.NO_ROOM, "one line that says so"
    assert {name: (folder / name).read_text() for name in before} == before
    assert not list(folder.glob(f"{PREFIX}*"))


@pytest.mark.parametrize(
    ("events", "saved", "finished"),
    [
        ([{"event": "step", "step": 3}, {"event": "done", "step": 3}], [2, 3], True),
        ([{"event": "done", "step": 2}, {"event": "done", "step": 3}], [2, 3], True),
        ([{"event": "done", "step": 3}], [2], False),
        ([{"event": "done", "step": 3}], [3, 4], False),
        ([{"event": "done", "step": 2}], [3], False),
        ([{"event": "step", "step": 3}], [3], False),
        ([{"event": "done", "step": 3}, {"event": "step", "step": 3}], [3], False),
        ([], [3], False),
    ],
    ids=str,
)
def test_a_run_is_finished_if_it_ended_with_its_last_step_and_has_that_checkpoint(
    tmp_path: Path, events: list[dict[str, object]], saved: list[int], finished: bool
) -> None:
    """Also if a writer was killed in a line after the end."""
    lines = [json.dumps(event) for event in events]
    (tmp_path / run_folder.PROGRESS).write_text("\n".join([*lines, '{"event": "sta', "[]", '{"event"']))
    for step in saved:
        checkpoint = tmp_path / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / run_folder.MANIFEST).touch()
    (tmp_path / "checkpoints" / "step_000009").mkdir(parents=True)
    assert run_folder.is_finished(tmp_path, 3) is finished
