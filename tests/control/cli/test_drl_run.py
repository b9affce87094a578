"""`drl run`: progress, stopping, failures, and clean-up."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes for each

NO_SKY = "ScoringFailed: ValueError: no sky in the image (prompt 'a cat', replica 0, weights 1)"
KILLED = "the trainer was killed (SIGKILL), usually because the machine ran out of memory"
Drl = Callable[..., tuple[int, str]]
Start = Callable[..., "subprocess.Popen[str]"]
WriteJob = Callable[..., Path]


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read lines up to the first that holds `text`."""
    seen = []
    for line in process.stdout:
        seen.append(line.rstrip("\n"))
        if text in line:
            return seen
    raise AssertionError(f"no line with {text!r} in {seen}")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not collected yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_run_prints_a_line_per_step_and_a_summary(write_job: WriteJob, drl: Drl) -> None:
    code, output = drl("run", write_job())
    lines = output.splitlines()
    assert code == 0, output
    assert lines == [
        "a-job: run folder runs/a-job, log runs/a-job/train.log",
        "starting Ray ...",
        "held-out reward 0.500 ± 0.035 after step 0",
        *[
            f"step {step}/3  reward 0.4{step}0 ± 0.210  9.12 images/s  generate 5.2 s  reward 0.04 s  update 7.2 s  "
            f"sync 0.12 s  weights v{step}  ETA {2 * (3 - step)}s"
            for step in (1, 2, 3)
        ],
        "held-out reward 0.595 ± 0.034, 59.5% right after step 3",
        "held-out reward 0.500 ± 0.035 at step 0 -> 0.595 ± 0.034, 59.5% right at step 3 (200 images)",
        "checkpoint: runs/a-job/checkpoints/step_000003",
        "report: runs/a-job/report.html",
    ]


def test_the_run_folder_contains_job_and_overrides(write_job: WriteJob, drl: Drl, tmp_path: Path) -> None:
    job = write_job()
    drl("run", job, "--set", "spec.seed=7")
    folder = tmp_path / "runs" / "a-job"
    _, rendered = drl("render", job, "--set", "spec.seed=7")
    assert (folder / "overrides.txt").read_text() == rendered
    kept = (folder / "job.yaml").read_text()
    assert "# a folder next to this file" in kept
    assert str(tmp_path / "model") in kept
    # The copy is the same job, wherever it lies.
    code, output = drl("run", folder / "job.yaml")
    assert code == 0
    assert "is already finished" in output


def test_the_trainer_gets_defaults_for_variables_that_the_user_did_not_set(
    write_job: WriteJob, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    start("run", write_job()).communicate()
    environment = json.loads((tmp_path / "runs" / "a-job" / "environment.json").read_text())
    wanted = {
        "VERL_PLATFORM": "cpu",
        "RAY_worker_niceness": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "0",
    }
    assert {name: environment[name] for name in wanted} == wanted


def test_a_finished_run_resumes_only_with_more_steps(write_job: WriteJob, drl: Drl, tmp_path: Path) -> None:
    job = write_job()
    drl("run", job)
    code, output = drl("run", job)
    finished = "a-job is already finished; to run it again, add --fresh; to continue it, raise totalSteps"
    assert (code, output.splitlines()[0]) == (0, finished)
    code, output = drl("run", job, "--set", "spec.trainer.totalSteps=5")
    assert code == 0
    assert "resuming from the checkpoint of step 3 of 5" in output
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/a-job/metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4, 5]


def test_a_run_folder_of_another_job_is_refused_and_fresh_renames_it(
    write_job: WriteJob, drl: Drl, tmp_path: Path
) -> None:
    job = write_job()
    drl("run", job)
    code, output = drl("run", job, "--set", "spec.trainer.learningRate=0.5")
    assert code == 2
    assert "these fields differ:\n  spec.trainer.learningRate\nto start a new run, add --fresh" in output
    code, output = drl("run", job, "--set", "spec.trainer.learningRate=0.5", "--fresh")
    assert code == 0
    assert "resuming" not in output
    assert (tmp_path / "runs" / "a-job-before-1" / "report.html").is_file()


def test_a_job_can_be_corrected_after_the_trainer_refused_its_settings(
    write_job: WriteJob, drl: Drl, tmp_path: Path
) -> None:
    assert drl("run", write_job("refuse"))[0] == 2
    code, output = drl("run", write_job(), "--set", "spec.trainer.learningRate=0.5")
    assert (code, "differ" in output) == (0, False), output
    assert not (tmp_path / "runs" / "a-job-before-1").exists()


def test_fields_for_clusters_only_do_not_prevent_a_resume(write_job: WriteJob, drl: Drl) -> None:
    job = write_job()
    drl("run", job, "--set", "spec.trainer.totalSteps=2")
    code, output = drl("run", job, "--set", "spec.cleanupPolicy=Retain", "--set", "spec.checkpoint.claimName=runs")
    assert (code, "resuming" in output) == (0, True)


def test_a_run_resumes_with_less_memory_another_tracker_and_another_output(write_job: WriteJob, drl: Drl) -> None:
    job = write_job()
    drl("run", job, "--set", "spec.trainer.totalSteps=2")
    changes = (
        "rollout.engine.maxBatchSize=4",
        "trainer.batch.microBatchSamples=1",
        "rollout.engine.promptCache=true",
        "observability.tracking.loggers=[tensorboard]",
        "output.url=s3://results/team-a",
        "algorithm.overrides=[test.behave=well, actor_rollout_ref.actor.fsdp_config.param_offload=true]",
    )
    settings = [part for change in changes for part in ("--set", f"spec.{change}")]
    code, output = drl("run", job, *settings)
    assert (code, "resuming" in output) == (0, True), output
    code, output = drl("run", job, *settings, "--set", "spec.trainer.learningRate=0.5")
    assert code == 2
    assert "these fields differ:\n  spec.trainer.learningRate\nto start a new run" in output


def test_a_folder_with_other_files_is_refused(write_job: WriteJob, drl: Drl, tmp_path: Path) -> None:
    (tmp_path / "runs" / "a-job").mkdir(parents=True)
    (tmp_path / "runs" / "a-job" / "thesis.tex").write_text("years of work")
    code, output = drl("run", write_job())
    assert code == 2
    assert "runs/a-job is not a run folder of this version" in output
    assert (tmp_path / "runs" / "a-job" / "thesis.tex").exists()


def test_ctrl_c_writes_a_checkpoint_and_the_next_run_resumes(write_job: WriteJob, start: Start, drl: Drl) -> None:
    job = write_job("wait")
    process = start("run", job)
    until(process, "step 1/3")
    process.send_signal(signal.SIGINT)
    seen = until(process, "stopping after this step, with a checkpoint; press Ctrl-C again to stop now")
    remaining, _ = process.communicate()
    assert process.returncode == 130
    # A process that another test kills meanwhile may leave a semaphore, which is taken for this run's.
    last_lines = [line for line in remaining.splitlines() if not line.startswith("removed shared memory")]
    assert last_lines == ["stopped after step 1 of 3; last checkpoint: step 1", f"resume with: drl run {job}"]
    assert seen
    code, output = drl("run", job)
    assert code == 0
    assert "resuming from the checkpoint of step 1 of 3" in output


def test_the_resume_command_repeats_the_options_of_the_run(write_job: WriteJob, start: Start, drl: Drl) -> None:
    job = write_job("wait")
    process = start("run", job, "--runs", "other", "--set", "spec.seed=7", "--fresh", "--plain")
    until(process, "step 1/3")
    process.send_signal(signal.SIGINT)
    remaining, _ = process.communicate()
    hint = remaining.splitlines()[-1]
    assert hint == f"resume with: drl run {job} --runs other --set spec.seed=7"
    code, output = drl(*shlex.split(hint.partition(": drl ")[2]))
    assert (code, "resuming from the checkpoint of step 1" in output) == (0, True)


def test_a_run_from_standard_input_resumes_from_the_copy_of_the_job(
    write_job: WriteJob, start: Start, drl: Drl
) -> None:
    with write_job("wait").open() as text:
        process = start("run", "-", "--steps", "4", stdin=text)
        until(process, "step 1/4")
        process.send_signal(signal.SIGINT)
        remaining, _ = process.communicate()
    assert remaining.splitlines()[-1] == "resume with: drl run runs/a-job/job.yaml"
    code, output = drl("run", "runs/a-job/job.yaml")
    assert (code, "resuming from the checkpoint of step 1 of 4" in output) == (0, True)


def test_a_trainer_that_ignores_signals_is_killed_with_its_descendants(
    write_job: WriteJob, start: Start, tmp_path: Path
) -> None:
    process = start("run", write_job("stubborn"), "--patience", "0")
    until(process, "step 1/3")
    trainer, child = map(int, (tmp_path / "runs" / "a-job" / "pids").read_text().split())
    segment = Path("/dev/shm") / f"psm_drltest{trainer}"
    assert alive(trainer)
    assert alive(child)
    assert segment.exists()
    process.send_signal(signal.SIGINT)
    until(process, "stopping after this step")
    process.send_signal(signal.SIGINT)
    seen = until(process, "killing the trainer")
    assert "stopping now, without a checkpoint; press Ctrl-C again to kill the trainer" in seen
    remaining, _ = process.communicate()
    assert process.returncode == 130
    assert "terminated processes that the trainer left running: python" in remaining
    assert f"removed shared memory that the trainer left in /dev/shm: {segment.name}" in remaining
    assert not alive(trainer)
    assert not alive(child)
    assert not segment.exists()


def test_a_process_left_by_a_successful_run_is_terminated_and_named(
    write_job: WriteJob, drl: Drl, tmp_path: Path
) -> None:
    code, output = drl("run", write_job("litter"), "--patience", "0")
    trainer, child = map(int, (tmp_path / "runs" / "a-job" / "pids").read_text().split())
    assert code == 0
    assert "terminated processes that the trainer left running: python" in output
    assert not alive(child)
    assert not (Path("/dev/shm") / f"psm_drltest{trainer}").exists()


@pytest.mark.parametrize(
    ("behave", "exit_code", "cause", "shown", "hidden"),
    [
        ("fail", 1, "RuntimeError: the reward server is away", "  |     raise RuntimeError(", "INFO"),
        ("report-error", 1, NO_SKY, "", "  | "),
        ("refuse", 2, "reward.reward_functions.sky.clouds: unknown setting", "", "Traceback"),
        ("die", 1, KILLED, "", "Traceback"),
    ],
)
def test_the_last_line_is_the_cause_after_what_the_log_says_of_it(
    write_job: WriteJob, drl: Drl, behave: str, exit_code: int, cause: str, shown: str, hidden: str
) -> None:
    """An error that the trainer reports hides the log."""
    code, output = drl("run", write_job(behave))
    assert code == exit_code
    assert output.splitlines()[-2:] == ["log: runs/a-job/train.log", f"failed: {cause}"]
    assert shown in output and hidden not in output


def test_prompts_cannot_control_the_terminal(write_job: WriteJob, drl: Drl) -> None:
    code, output = drl("run", write_job("control"))
    assert code == 1
    assert "warning: prompt ' ]0;title" in output and "failed: prompt ' ]0;title" in output
    assert output.replace("\n", "").isprintable(), repr(output)


def test_a_second_concurrent_run_of_a_job_is_refused(write_job: WriteJob, start: Start, drl: Drl) -> None:
    job = write_job("wait")
    process = start("run", job)
    until(process, "step 1/3")
    code, output = drl("run", job)
    assert code == 2
    assert "runs/a-job: this job is already running (process " in output
    assert str(process.pid) in output
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130


def test_a_closed_output_pipe_ends_the_trainer(write_job: WriteJob, start: Start, tmp_path: Path) -> None:
    process = start("run", write_job("stubborn"), "--patience", "0", stderr=subprocess.DEVNULL)
    until(process, "step 1/3")
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    process.wait()
    trainer, child = map(int, (tmp_path / "runs" / "a-job" / "pids").read_text().split())
    assert process.returncode != 0
    assert not alive(trainer)
    assert not alive(child)


def test_a_terminal_shows_a_progress_bar(write_job: WriteJob, start: Start) -> None:
    ours, theirs = pty.openpty()
    process = start("run", write_job(), columns=70, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # a terminal without writers reports this error
        pass
    os.close(ours)
    process.wait()
    text = shown.decode()
    assert process.returncode == 0
    assert "3/3" in text
    assert "reward 0.430 ± 0.210  9.12 images/s  weights v3" in text
    assert "ETA 0s" in text and "…" not in text, "70 columns have room for all"
    assert "held-out reward 0.595" in text


def test_ctrl_c_ends_a_program_of_the_training_stack_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import signal, sys\nprint(*sys.argv[1:], flush=True)\nsignal.pause()\n")
    call = (
        "from omni_operator.cli.machine import training_stack as stack\n"
        "stack.STACK = ()\n"
        "stack.exec_module('wait', ['ready', '--out'])"
    )
    operator = Path(__file__).parents[3] / "operator"
    process = subprocess.Popen(
        [sys.executable, "-c", call],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{operator}:{tmp_path}"},
    )
    assert process.stdout.readline() == "ready --out\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == ""
    assert process.returncode == 130


def test_missing_files_are_refused_before_the_run_starts(write_job: WriteJob, drl: Drl, tmp_path: Path) -> None:
    job = write_job()
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / "model" / "model_index.json").unlink()
    (tmp_path / "clip").mkdir()
    scorers = "{name: mine, function: {path: no.py}}, {name: aesthetic, settings: {head_path: no.pth, %s}}"
    code, output = drl("run", job, "--set", f"spec.reward.scorers=[{scorers % 'model_name_or_path: ./clip'}]")
    assert code == 2
    assert f"{job}:6: spec.model.base: no model in model (no model_index.json); " in output
    assert f"{job}:7: spec.data.train[0]: no readable file train.jsonl" in output
    assert "spec.reward.scorers[0].function.path: no file no.py" in output
    assert "spec.reward.scorers[1].settings.head_path: no file or folder no.pth" in output
    assert "4 problems" in output
    assert not (tmp_path / "runs").exists()


def test_an_unknown_entrypoint_program_is_refused(write_job: WriteJob, drl: Drl) -> None:
    code, output = drl("run", write_job(), "--set", "spec.algorithm.entrypoint=[no-such-program]")
    assert code == 2
    assert "spec.algorithm.entrypoint: no program 'no-such-program' on this machine" in output


def test_steps_and_seed_options_set_the_fields(write_job: WriteJob, drl: Drl, tmp_path: Path) -> None:
    assert drl("run", write_job(), "--steps", "1", "--seed", "9")[0] == 0
    overrides = (tmp_path / "runs" / "a-job" / "overrides.txt").read_text().splitlines()
    assert {"trainer.total_training_steps=1", "trainer.seed=9", "data.seed=9"} <= set(overrides)


def test_the_trainer_stops_when_drl_is_killed(write_job: WriteJob, start: Start, tmp_path: Path) -> None:
    process = start("run", write_job("wait"))
    until(process, "step 1/3")
    trainer = os.pidfd_open(int((tmp_path / "runs" / "a-job" / "pids").read_text()))
    process.kill()
    process.wait()
    select.select([trainer], [], [])  # the trainer's end; the test's own deadline if there is none
    os.close(trainer)
    events = (tmp_path / "runs" / "a-job" / "progress.jsonl").read_text().splitlines()
    assert json.loads(events[-1])["event"] == "stopped"
