"""The second Ctrl-C of the training program: it ends at once, and its last line says what is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ml.trainer.recorded_runs import events

# A run that gets signals after its third step.
PROGRAM = """
import contextlib, os, signal, sys
from pathlib import Path
from omegaconf import OmegaConf
from verl_omni.trainer import main_diffusion
from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.operator_reporter import NullReporter
from verl_omni.trainer.run.stop_signal import StopOnSignal

folder, saved, signals = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
stop = StopOnSignal()

def train(run, resources):
    resources.callback(print, "Ray has stopped")
    for step in (1, 2, 3):
        run.folder.step({"step": step})
        if step == saved:
            checkpoints.save(folder / "checkpoints", step, lambda path: (path / "weights").touch(), keep=0, run=1)
    for _ in range(signals):
        os.kill(os.getpid(), signal.SIGINT)
    if stop.requested:
        from verl_omni.trainer.run.step_checkpoints import Interrupted
        raise Interrupted("stopped after step 3 of 9")

config = OmegaConf.create({"trainer": {
    "default_local_dir": str(folder), "resume_mode": "auto", "total_training_steps": 9, "output": {"url": None},
}})
sys.exit(main_diffusion.run_training(config, NullReporter(), train))
"""


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "signals", "message"),
    [
        (
            2,
            2,
            "stopped at once: the step at work and 1 complete before it are lost; the newest checkpoint is of step 2",
        ),
        (0, 2, "stopped at once: the step at work and 3 complete before it are lost; there is no checkpoint"),
        (2, 1, "stopped after step 3 of 9"),
    ],
)
def test_the_second_signal_ends_a_run_with_one_line_and_the_first_after_the_step(
    tmp_path: Path, saved: int, signals: int, message: str
) -> None:
    ended = run(PROGRAM, tmp_path, saved, signals)
    lines = ended.stdout.splitlines()
    assert (ended.returncode, lines[-2:]) == (130, [f"stopped: {message}", "Ray has stopped"]), ended.stdout
    assert "Traceback" not in ended.stdout
    assert [event["message"] for event in events(tmp_path, "stopped")] == [message]
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_before_the_run_begins_nothing_is_lost(tmp_path: Path) -> None:
    """Settings are read from a module of the user's, where the user interrupts."""
    (tmp_path / "own_names.py").write_text("raise KeyboardInterrupt\n")
    overrides = [
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
        "actor_rollout_ref.model.external_lib=own_names",
    ]
    ended = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        f"from verl_omni.trainer import main_diffusion; sys.exit(main_diffusion.main({overrides}))"
    )
    assert (ended.returncode, ended.stdout) == (130, "stopped before the run began: nothing is lost\n")
