"""Checkpoints that are written in the background: complete or absent, and no error is lost."""

import errno
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.checkpoint_saver import CheckpointSaver


class WritingWorkers:
    """Two ranks. Each writes half of its state when a checkpoint starts, and the rest when the test says so.

    Attributes:
        error: what the write of the second rank raises.
        calls: what was called, with the seconds to wait.
    """

    def __init__(self) -> None:
        self.state, self.error = "s0", None  # type: tuple[str, Exception | None]
        self.ended = False
        self.calls: list[Any] = []

    def start_checkpoint(self, folder: str) -> None:
        self.calls.append("start")
        self.ended = False
        self._copy = self.state
        self._folder = Path(folder)
        (self._folder / "rank0").write_text(self._copy)

    def finish_checkpoint(self, wait_s: float) -> list[bool]:
        self.calls.append(wait_s)
        self.ended = self.ended or wait_s > 0
        if self.ended:
            if self.error is not None:
                raise self.error
            (self._folder / "rank1").write_text(self._copy)
        return [True, self.ended]


@pytest.fixture
def workers() -> WritingWorkers:
    return WritingWorkers()


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


def make(folder: Path, workers: WritingWorkers, events: list[dict[str, Any]]) -> CheckpointSaver:
    def record(event: str, **fields: Any) -> None:
        events.append({"event": event, **fields})

    return CheckpointSaver(
        folder, workers, keep=0, background=True, deadline_s=60.0, event=record, may_write=lambda: None
    )


@pytest.fixture
def saver(tmp_path: Path, workers: WritingWorkers, events: list[dict[str, Any]]) -> CheckpointSaver:
    return make(tmp_path, workers, events)


def test_a_checkpoint_is_absent_until_every_rank_has_written_it(
    saver: CheckpointSaver, workers: WritingWorkers, events: list[dict[str, Any]], tmp_path: Path
) -> None:
    saver.save(1)
    workers.state = "s1"  # the training goes on
    saver.poll()
    assert checkpoints.steps(tmp_path) == [] and events == []
    workers.ended = True
    saver.poll()
    assert checkpoints.steps(tmp_path) == [1]
    assert [(event["event"], event["step"]) for event in events] == [("checkpoint", 1)]
    assert [(tmp_path / "step_000001" / f"rank{rank}").read_text() for rank in (0, 1)] == ["s0", "s0"]
    assert workers.calls == ["start", 0.0, 0.0], "a poll does not wait"
    saver.poll()
    saver.wait()
    assert len(workers.calls) == 3, "there is nothing to finish"


def test_the_next_save_waits_for_the_last_one(saver: CheckpointSaver, workers: WritingWorkers, tmp_path: Path) -> None:
    saver.save(1)
    saver.save(2)
    assert workers.calls == ["start", 60.0, "start"]
    assert checkpoints.steps(tmp_path) == [1]
    saver.wait()
    assert checkpoints.steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("then", ["save", "poll", "wait"])
def test_a_full_disk_is_raised(saver: CheckpointSaver, workers: WritingWorkers, tmp_path: Path, then: str) -> None:
    saver.save(1)
    saver.wait()
    saver.save(2)
    workers.error = OSError(errno.ENOSPC, "No space left on device")
    workers.ended = True
    with pytest.raises(OSError, match="No space left on device"):
        saver.save(3) if then == "save" else getattr(saver, then)()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"], "neither the broken one nor the next"
    assert workers.calls.count("start") == 2


def test_a_write_past_its_deadline_ends_in_an_error(
    saver: CheckpointSaver, workers: WritingWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "finish_checkpoint", lambda wait_s: [True, False])
    saver.save(1)
    with pytest.raises(TimeoutError, match=r"checkpoint of step 1 was not written within 60 s.*async_save=false"):
        saver.wait()
    assert checkpoints.steps(tmp_path) == []


def test_a_run_has_the_checkpoint_that_it_continues_from_and_none_of_another_run(
    saver: CheckpointSaver, tmp_path: Path
) -> None:
    def write(folder: Path) -> None:
        (folder / "rank0").touch()

    saver.start(None)
    assert (saver.run_number, saver.newest) == (1, None)
    foreign = checkpoints.save(tmp_path / "elsewhere", 9, write, keep=0, run=1)
    first, second = (checkpoints.save(tmp_path, step, write, keep=0, run=1) for step in (1, 2))
    for resumed_from, run, newest in ((None, 2, None), (foreign, 2, None), (first, 2, None), (second, 1, 2)):
        saver.start(resumed_from)
        assert (saver.run_number, saver.newest) == (run, newest)
        saver.newest = None


def test_after_a_crash_the_last_complete_checkpoint_is_the_newest(
    saver: CheckpointSaver, workers: WritingWorkers, tmp_path: Path
) -> None:
    saver.save(1)
    saver.wait()
    saver.save(2)  # the process is killed here
    newest = checkpoints.latest(tmp_path)
    assert newest is not None and newest.name == "step_000001"
    assert (tmp_path / ".writing_step_000002").exists()
    again = make(tmp_path, WritingWorkers(), [])
    again.save(3)
    again.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000003"]
