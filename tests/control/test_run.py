"""`drl run` around a stand-in for the trainer: progress, failure, interruption, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omni_operator.cli import leftovers
from omni_operator.cli.progress import Tail, sentence

TRAINER = """
import json, os, signal, subprocess, sys, time
folder = dict(a.split("=", 1) for a in sys.argv[2:])["trainer.default_local_dir"].strip("'")
def say(**event):
    with open(folder + "/progress.jsonl", "a") as file:
        file.write(json.dumps(event) + "\\n")
mode = sys.argv[1]
say(event="start", total_steps=2, resumed_from=None)
say(event="phase", text="warming up")
if mode == "fail":
    say(event="error", message="out of paint", kind="PaintError")
    print("INFO noise"); print("Traceback: out of paint"); sys.exit(1)
if mode == "leave":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if mode in ("wait", "deaf"):
    if mode == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        def stop(*a):
            say(event="stopped", message="stopped after step 1 of 2", kind="Interrupted"); sys.exit(130)
        signal.signal(signal.SIGINT, stop)
    say(event="phase", text="ready")
    time.sleep(600)
say(event="step", step=1, **{"reward/mean": 0.5, "reward/std": 0.1, "images_per_s": 8.0, "weights/version": 1,
    "timing_s/generate": 1.0, "timing_s/update": 2.0, "timing_s/sync": 0.1, "eta_s": 61.0})
say(event="step", step=2, **{"reward/mean": 0.6, "reward/std": 0.1, "images_per_s": 8.0, "weights/version": 2,
    "val/reward/mean": 0.7, "val/reward/stderr": 0.01, "val/n": 4, "eta_s": None})
say(event="done", step=2, report="r")
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "trainer.py").write_text(TRAINER)
    return tmp_path


def command(folder: Path, mode: str, *more: str) -> list[str]:
    text = f"""apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {{name: job}}
spec:
  model: {{base: model}}
  data: {{train: prompts.jsonl}}
  reward: {{scorer: jpeg}}
  trainer: {{steps: 2}}
  algorithm: {{entrypoint: [python3, {folder / "trainer.py"}, {mode}]}}
"""
    (folder / "job.yaml").write_text(text)
    return [sys.executable, "-m", "omni_operator.cli", "run", str(folder / "job.yaml"), "--runs", str(folder), *more]


def run(folder: Path, mode: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, mode, *more), capture_output=True, text=True, timeout=120, check=False)


def started(folder: Path, mode: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(command(folder, mode), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "ready" in line:
            return process
    raise AssertionError("the trainer did not become ready")


def trainers(folder: Path) -> list[int]:
    wanted = str(folder / "trainer.py").encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_run_is_shown_line_by_line_where_there_is_no_terminal(job: Path) -> None:
    done = run(job, "work")
    assert done.returncode == 0, done.stderr
    assert "warming up …" in done.stdout
    assert (
        "step 1/2  reward 0.500 ± 0.100  8.0 images/s  generate 1.0s  update 2.0s  sync 0.1s  weights v1" in done.stdout
    )
    assert "1m01s left" in done.stdout and "after  step 2: held-out reward 0.700 ± 0.010" in done.stdout
    assert "trainer.total_training_steps=2" in (job / "job" / "overrides.txt").read_text().splitlines()
    assert (job / "job" / "job.yaml").read_text() == (job / "job.yaml").read_text()


def test_a_failure_says_why_and_where_to_look(job: Path) -> None:
    done = run(job, "fail")
    assert done.returncode == 1
    assert "out of paint" in done.stderr and "train.log" in done.stderr
    assert "INFO noise" not in done.stderr


def test_another_job_does_not_overwrite_a_run(job: Path) -> None:
    run(job, "work")
    kept = (job / "job" / "overrides.txt").read_text()
    refused = run(job, "work", "--seed", "5")
    assert refused.returncode == 2 and "--fresh" in refused.stderr
    assert (job / "job" / "overrides.txt").read_text() == kept
    assert run(job, "work", "--steps", "9").returncode == 0, "a run may be made longer"
    assert run(job, "work", "--seed", "5", "--fresh").returncode == 0


def test_ctrl_c_lets_the_trainer_finish(job: Path) -> None:
    process = started(job, "wait")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this step" in output and "stopped after step 1 of 2" in output
    assert trainers(job) == []


def test_a_second_ctrl_c_ends_a_trainer_that_does_not_listen(job: Path) -> None:
    process = started(job, "deaf")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert "stopping after this step" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0 and trainers(job) == []


def test_processes_that_the_trainer_leaves_are_ended(job: Path) -> None:
    done = run(job, "leave")
    assert "ended 1 processes that the run had left" in done.stdout


def test_a_killed_drl_takes_the_trainer_along(job: Path) -> None:
    process = started(job, "wait")
    (trainer,) = trainers(job)
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while trainers(job) and time.monotonic() < end:
        os.sched_yield()
    assert trainers(job) == [], f"{trainer} lives on"


def test_an_unfinished_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail = Tail(path)
    assert list(tail.events()) == []
    path.write_text('{"event": "phase", "text": "a"}\n{"event": "ph')
    assert [event["text"] for event in tail.events()] == ["a"]
    with path.open("a") as file:
        file.write('ase", "text": "b"}\n')
    assert [event["text"] for event in tail.events()] == ["b"]


def test_segments_of_living_processes_stay(tmp_path: Path) -> None:
    before = leftovers.segments()
    path = leftovers.SHARED_MEMORY / f"verl_omni_weights_test_{os.getpid()}"
    path.write_bytes(b"x")
    assert leftovers.remove_segments(before) == [path]
    assert not path.exists()


def test_events_without_words_are_silent() -> None:
    assert sentence({"event": "done", "step": 1}, 1) is None
    assert sentence({"event": "start", "resumed_from": 4, "total_steps": 9}, 9) == "going on after step 4 of 9"
