"""Tests of the shell command that starts the trainer in a pod."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from control.plan.rendered_objects import make_job
from omni_operator import plan
from omni_operator.plan.entrypoint import CONTAINER_OUTPUT, COPY_SECONDS
from omni_operator.plan.pods.workers import JOB_FOLDER
from omni_operator.status.observed.evidence import killed_program

TRAINER = """
import signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda *args: signals.append(1))
print("training", flush=True)
while not signals:
    time.sleep(0.01)
print("saving", flush=True)
time.sleep(0.3)  # a second signal would come now
print("saved after", len(signals), file=sys.stderr, flush=True)
sys.exit(7)
"""
FAILING = "import sys; sys.exit('the cause of the failure')"
KILLED = """
import os, signal
print("training", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
# The process that stays has the trainer's output.
LEAVING = """
import subprocess
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
"""
SLOW_COPIER = """#!/bin/sh
sleep 0.5
exec {tee} "$@"
"""


class Pod:
    """Where the line runs: a job's folder, a claim, and what the container printed."""

    def __init__(self, folder: Path, trainer: str) -> None:
        (folder / "trainer.py").write_text(trainer)
        (folder / "job").mkdir()
        self.temporary = folder / "temporary"
        self.programs = folder / "programs"
        self.temporary.mkdir()
        self.programs.mkdir()
        for name in ("job.yaml", "overrides.txt"):
            (folder / "job" / name).write_text(f"of {name}\n")
        self.output = folder / "output"
        self.runs = folder / "claim with a space" / "a-job"
        self.output.write_text("started\n")
        self.ray_log = folder / "ray.log"
        job = make_job(
            f"spec.algorithm.entrypoint=['{sys.executable}', '{folder / 'trainer.py'}']",
            f"spec.checkpoint={{claimName: c, path: '{self.runs.parent}'}}",
        )
        line = plan.render_entrypoint(*plan.resolve_for_pods(job)).replace(JOB_FOLDER, str(folder / "job"))
        assert CONTAINER_OUTPUT in line
        self.line = line.replace(CONTAINER_OUTPUT, str(self.output))

    def start(self, shell: str = "/bin/sh") -> subprocess.Popen[bytes]:
        """As Ray starts it: by a shell, as the leader of a process group, with a file for the output."""
        path = f"{self.programs}:{os.environ['PATH']}"
        with self.ray_log.open("ab") as log:
            return subprocess.Popen(
                self.line,
                shell=True,
                executable=shell,
                start_new_session=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.temporary), "PATH": path},
            )

    def run(self, shell: str = "/bin/sh") -> tuple[int, str]:
        """Exit code, and what Ray reads in its log at that moment."""
        code = self.start(shell).wait()
        return code, self.ray_log.read_text()

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """As Ray stops a job that trains: a signal to each of its processes. The exit code."""
        while not self.ray_log.exists() or not self.ray_log.read_text().endswith("training\n"):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGTERM)
        return process.wait()


@pytest.fixture
def pod(tmp_path: Path) -> Callable[[str], Pod]:
    return lambda trainer: Pod(tmp_path, trainer)


@pytest.fixture(params=["/bin/sh", "/bin/bash"])
def shell(request: pytest.FixtureRequest) -> str:
    """What `/bin/sh` is in images."""
    return request.param


def test_all_output_goes_to_ray_the_run_folder_and_the_container(pod: Callable[[str], Pod], shell: str) -> None:
    """A stopped job gets one signal: at the second, the trainer would not save."""
    trainer_pod = pod(TRAINER)
    assert trainer_pod.stop(trainer_pod.start(shell)) == 7
    lines = "training\nsaving\nsaved after 1\n"
    assert trainer_pod.ray_log.read_text() == lines
    assert (trainer_pod.runs / "train.log").read_text() == lines
    assert trainer_pod.output.read_text() == "started\n" + lines
    assert (trainer_pod.runs / "job.yaml").read_text() == "of job.yaml\n"
    assert list(trainer_pod.temporary.iterdir()) == []


@pytest.mark.slow
def test_the_command_ends_when_ray_has_the_last_output(pod: Callable[[str], Pod], shell: str) -> None:
    """Ray reads its log when the command has ended; the cause of a failure is in the last line."""
    failing_pod = pod(FAILING)
    tee = failing_pod.programs / "tee"
    tee.write_text(SLOW_COPIER.format(tee=shutil.which("tee")))
    tee.chmod(0o755)
    assert failing_pod.run(shell) == (1, "the cause of the failure\n")


def test_a_killed_trainer_is_seen_by_its_exit_code(pod: Callable[[str], Pod], shell: str) -> None:
    code, output = pod(KILLED).run(shell)
    # bash itself says that a program was killed, on a busy machine before the trainer's line was copied, or within it.
    assert code == 137 and (output.startswith("training") or "\ntraining" in output)
    assert killed_program(f"Job entrypoint command failed with exit code {code}, last available logs: {output}")


def test_a_process_that_the_trainer_leaves_delays_the_end_and_does_not_prevent_it(pod: Callable[[str], Pod]) -> None:
    leaving_pod = pod(LEAVING)
    assert f" {COPY_SECONDS} " in leaving_pod.line
    leaving_pod.line = leaving_pod.line.replace(f" {COPY_SECONDS} ", " 0.5 ")
    code, left = leaving_pod.run()
    os.kill(int(left), signal.SIGKILL)  # it is there
    assert code == 0


@pytest.mark.slow
def test_the_next_attempt_appends_to_the_log(pod: Callable[[str], Pod]) -> None:
    trainer_pod = pod(TRAINER)
    for _ in range(2):
        trainer_pod.stop(trainer_pod.start())
    assert (trainer_pod.runs / "train.log").read_text().count("saved") == 2


def test_the_trainer_does_not_start_without_the_job_folder(pod: Callable[[str], Pod], tmp_path: Path) -> None:
    failing_pod = pod(FAILING)
    (tmp_path / "job" / "job.yaml").unlink()
    code, output = failing_pod.run()
    assert (code, "job.yaml" in output, "the cause" in output) == (1, True, False)
    assert not (failing_pod.runs / "train.log").exists()
