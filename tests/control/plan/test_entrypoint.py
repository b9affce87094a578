"""Tests of the shell command that starts the trainer in a pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.plan.entrypoint import CONTAINER_OUTPUT
from omni_operator.plan.workers import JOB_FOLDER

MakeJob = Callable[..., DiffusionRLJob]
CHILD = """
import signal, sys, time
def stop(*args):
    print("saving", flush=True)
    print("saved", file=sys.stderr, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
print("training", flush=True)
time.sleep(60)
"""


class Pod:
    """Where the line runs: a job's folder, a claim, and what the container printed."""

    def __init__(self, folder: Path, make_job: MakeJob) -> None:
        (folder / "child.py").write_text(CHILD)
        (folder / "job").mkdir()
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        for name in ("job.yaml", "overrides.txt"):
            (folder / "job" / name).write_text(f"of {name}\n")
        self.output, self.runs = folder / "output", folder / "claim with a space" / "a-job"
        self.output.write_text("started\n")
        job = make_job(
            f"spec.algorithm.entrypoint=['{sys.executable}', '{folder / 'child.py'}']",
            f"spec.checkpoint={{claimName: c, path: '{self.runs.parent}'}}",
        )
        line = plan.render_entrypoint(*plan.resolve_for_pods(job)).replace(JOB_FOLDER, str(folder / "job"))
        assert CONTAINER_OUTPUT in line
        self.line = line.replace(CONTAINER_OUTPUT, str(self.output))

    def start(self) -> subprocess.Popen[str]:
        """As Ray starts it: by /bin/sh, as the leader of a process group."""
        pipe = subprocess.PIPE
        variables = {**os.environ, "TMPDIR": str(self.temporary)}
        return subprocess.Popen(self.line, shell=True, start_new_session=True, stdout=pipe, text=True, env=variables)


@pytest.fixture
def pod(tmp_path: Path, make_job: MakeJob) -> Pod:
    return Pod(tmp_path, make_job)


def test_all_output_goes_to_ray_the_run_folder_and_the_container(pod: Pod) -> None:
    process = pod.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    os.killpg(process.pid, signal.SIGTERM)  # as Ray stops a job
    rest = process.stdout.read()
    assert (process.wait(), rest) == (7, "saving\nsaved\n")
    said = "training\nsaving\nsaved\n"
    assert (pod.runs / "train.log").read_text() == said
    assert pod.output.read_text() == "started\n" + said
    assert (pod.runs / "job.yaml").read_text() == "of job.yaml\n"
    assert list(pod.temporary.iterdir()) == []


def test_the_next_attempt_appends_to_the_log(pod: Pod) -> None:
    for _ in range(2):
        process = pod.start()
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
    assert (pod.runs / "train.log").read_text().count("saved\n") == 2


def test_the_trainer_does_not_start_without_the_job_folder(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "job" / "job.yaml").unlink()
    process = pod.start()
    said, _ = process.communicate()
    assert (process.returncode != 0, said, (pod.runs / "train.log").exists()) == (True, "", False)
