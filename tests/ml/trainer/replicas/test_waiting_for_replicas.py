"""Runs that wait for replicas with a step that is trained: what is saved, and how a resumed run continues."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl import DataProto

from tests.ml.trainer.recorded_runs import Recorder, events
from tests.ml.trainer.replicas.replicas_in_memory import Memory, Recorded, Replica
from tests.ml.trainer.runs_in_memory import RunInMemory, Trained, trainer
from verl_omni.trainer.generation import sample_generator
from verl_omni.trainer.metrics.exported import TrainerMetrics
from verl_omni.trainer.replicas import replica_updates
from verl_omni.trainer.replicas.replica_reports import JoinTimes
from verl_omni.trainer.replicas.replica_updates import ReplicaUpdates
from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.step_checkpoints import Interrupted
from verl_omni.weight_sync.errors import TooFewReplicas

pytestmark = pytest.mark.slow  # composes all settings for each

# the only replica does not take the weights of step 2
STEPS = 4
LOST = 2
MODES = pytest.mark.parametrize("sync", ["true", "false"], ids=["synchronous", "asynchronous"])


def waiting_run(
    folder: Path, stack: Trained, sync: str, patience: float, lost: int | None = LOST
) -> tuple[RunInMemory, ReplicaUpdates]:
    """A run whose only replica is lost with the weights of a step, and its replicas."""
    running = trainer(
        folder,
        stack,
        STEPS,
        f"trainer.v1.separate_async.sync_compatible={sync}",
        "trainer.save_freq=100",
        "trainer.test_freq=2",
        "trainer.val_before_train=false",
    )
    running.loop.evaluation.rows = running.rows
    memory = Memory(replicas=[Replica(0, 0)])
    memory.add(memory.replicas)
    updates = ReplicaUpdates(memory, list(memory.replicas), 1, patience, Recorded(), clock=time.monotonic)
    updates.waited = running.loop.checkpoints.poll_requests

    def update(global_steps: int) -> None:
        memory.replicas[0].takes = global_steps != lost
        updates.update_weights(global_steps)
        stack.served = global_steps

    running.stack.weights = SimpleNamespace(update_weights=update, sleep_replicas=lambda: None)
    return running, updates


def resumed(folder: Path, sync: str, first: list[Any]) -> None:
    """The rest of a run: it trains on the prompt groups that the first part has not had, and no other."""
    unbroken = Trained()
    resumed_part = Trained()
    waiting_run(folder.with_name("whole"), unbroken, sync, 0.0, lost=None)[0].fit(None)
    newest = checkpoints.latest(folder / "checkpoints")
    assert newest is not None and checkpoints.step_of(newest) == LOST
    run, _ = waiting_run(folder, resumed_part, sync, 0.0, lost=None)
    run.folder.start(run.config, resumed_from=LOST)
    run.fit(newest)
    assert [*first, *resumed_part.updates] == unbroken.updates
    assert [line["step"] for line in run.folder.metrics()] == [1, 2, 3, 4]
    lines = {line["step"]: line for line in run.folder.metrics()}
    assert {"reward/mean", "val/reward/mean"} <= lines[LOST].keys(), "its metrics, and the evaluation of its weights"


@MODES
def test_a_run_that_is_stopped_while_it_waits_for_replicas_has_saved_its_step(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_updates, "WAIT_SECONDS", 0.01)
    run, updates = waiting_run(tmp_path / "run", stack := Trained(), sync, patience=1000.0)
    run.requests.stop_wanted = lambda: waits(updates)
    with pytest.raises(Interrupted, match="stopped after step 2 of 4"):
        run.fit(None)
    resumed(tmp_path / "run", sync, stack.updates)


@MODES
def test_a_run_that_ends_without_replicas_has_saved_its_step(tmp_path: Path, sync: str) -> None:
    run, _ = waiting_run(tmp_path / "run", stack := Trained(), sync, patience=0.01)
    with pytest.raises(TooFewReplicas):
        run.fit(None)
    resumed(tmp_path / "run", sync, stack.updates)


def test_a_checkpoint_is_saved_for_the_operator_while_a_run_waits_for_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_updates, "WAIT_SECONDS", 0.01)
    run, updates = waiting_run(tmp_path, stack := Trained(), "false", patience=1000.0)
    run.requests.checkpoint_wanted = once(lambda: waits(updates))
    run.loop.recorder.exported = TrainerMetrics(exported := Recorder())
    logged = Logged()
    run.loop.recorder.tracking = logged  # type: ignore[assignment]
    poll = updates.waited

    def poll_and_join() -> None:
        poll()
        if checkpoints.latest(tmp_path / "checkpoints") is not None:
            updates.join(Replica(1, 1), JoinTimes(0.0, 0.0))

    updates.waited = poll_and_join
    run.fit(None)
    assert len(stack.updates) == STEPS
    assert [line["step"] for line in run.folder.metrics()] == [1, 2, 3, 4]
    assert [event["step"] for event in events(tmp_path, "checkpoint")] == [LOST, STEPS]
    assert exported.values["omni_optimizer_steps_total"] == STEPS, "the saved step was counted twice"
    for phase in ("generate", "update", "sync", "eval"):
        spent = sum(line.get(f"timing_s/{phase}") or 0 for line in run.folder.metrics())
        assert exported.values.get(f"omni_phase_seconds_total/{phase}", 0) == pytest.approx(spent)
    assert [step for step, _ in logged.lines] == [1, LOST, LOST, 3, STEPS]
    (_, first), (_, second) = logged.lines[1:3]
    assert "reward/mean" in first and "val/reward/mean" in second and not first & second


class Logged:
    """What a tracker gets: steps, and the names of their metrics."""

    pictures = 0

    def __init__(self) -> None:
        self.lines: list[tuple[int, set[str]]] = []

    def log(self, data: dict[str, float], step: int) -> None:
        self.lines.append((step, set(data)))

    def show(self, step: int, samples: list[Any]) -> None:
        """Pictures are not looked at."""


def waits(updates: ReplicaUpdates) -> bool:
    """Whether an update has begun to wait."""
    reports: Any = updates.reports
    return any(line.startswith("waiting") for line in reports.lines)


def once(condition: Callable[[], bool]) -> Callable[[], bool]:
    """True the first time that a condition is."""
    seen: list[bool] = []

    def asked() -> bool:
        if seen or not condition():
            return False
        seen.append(True)
        return True

    return asked


class Blocked(Trained):
    """All replicas are lost in the generation after a step, or in its evaluation, and requests wait for others."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.lose = lambda: None
        self.go_on = threading.Event()

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        evaluates = bool(prompts.meta_info.get("validate"))
        if self.served == LOST and evaluates == (self.where == "evaluation"):
            self.lose()
            assert self.go_on.wait(60), "neither stopped nor joined"
        return super().generate_sequences(prompts)


def blocked_run(folder: Path, stack: Blocked, monkeypatch: pytest.MonkeyPatch) -> tuple[RunInMemory, Any]:
    monkeypatch.setattr(sample_generator, "POLL_SECONDS", 0.01)
    run, updates = waiting_run(folder, stack, "true", patience=1000.0, lost=None)
    run.stack.pool = SimpleNamespace(updates=updates)
    stack.lose = lambda: updates.lose(updates.replicas[0], "its node is gone")  # type: ignore[assignment]
    return run, updates


@pytest.mark.parametrize("where", ["generation", "evaluation"])
def test_a_run_that_is_stopped_while_a_generation_waits_for_replicas_has_saved_its_step(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, updates = blocked_run(tmp_path / "run", stack := Blocked(where), monkeypatch)
    run.requests.stop_wanted = lambda: not updates.replicas
    with pytest.raises(Interrupted, match="stopped after step 2 of 4"):
        run.fit(None)
    stack.go_on.set()
    (join,) = run.stack.before_ray_ends  # the thread that is left waits for nothing any more
    join()
    assert not [thread for thread in threading.enumerate() if thread.name == "watched-call"]
    resumed(tmp_path / "run", "true", stack.updates[:LOST])


def test_a_checkpoint_is_saved_for_the_operator_while_a_generation_waits_for_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, updates = blocked_run(tmp_path, stack := Blocked("generation"), monkeypatch)
    run.requests.checkpoint_wanted = once(lambda: not updates.replicas)
    save = run.loop.checkpoints.saver.save

    def save_and_join(step: int) -> None:
        save(step)
        if not updates.replicas:
            updates.join(Replica(1, 1), JoinTimes(0.0, 0.0))
            stack.go_on.set()

    run.loop.checkpoints.saver.save = save_and_join  # type: ignore[method-assign]
    run.fit(None)
    assert [line["step"] for line in run.folder.metrics()] == [1, 2, 3, 4]
    assert [event["step"] for event in events(tmp_path, "checkpoint")] == [LOST, STEPS]
