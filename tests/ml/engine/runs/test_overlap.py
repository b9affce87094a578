"""The first prompts of a step are trained on while the real engine generates the others; nothing else changes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ml.run_metrics import without_durations

pytestmark = pytest.mark.engine

PROMPTS = ["a red circle", "a blue square on the left", "two green crosses", "a cyan triangle"]
SAMPLES = 2
STEPS = 2


@dataclass
class Watched:
    """The calls of a run to engine and trainer, with their begin and end."""

    stack: Any
    fails_at: int | None = None
    calls: list[tuple[str, float, float]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    """Parts of steps."""

    def watching(self) -> Any:
        """The stack, whose calls are recorded; the one for the row `fails_at` fails."""
        workers = self.stack.workers
        return replace(
            self.stack,
            agent_loop=SimpleNamespace(
                generate_sequences=self._recorded("generate", self.stack.agent_loop.generate_sequences),
                send=self._send,
                receive=self._receive,
                abandon=self.stack.agent_loop.abandon,
            ),
            workers=SimpleNamespace(
                update_actor=self._recorded("update", workers.update_actor),
                update_part=self._recorded("part", workers.update_part),
                save_checkpoint=workers.save_checkpoint,
            ),
        )

    def _send(self, prompts: Any) -> Any:
        self.sent.append(self.stack.agent_loop.send(prompts))
        return self.sent[-1]

    def _receive(self, sent: Any) -> Any:
        if self.fails_at is not None and sent is self.sent[self.fails_at]:
            raise RuntimeError("this part fails")
        return self.stack.agent_loop.receive(sent)

    def _recorded(self, name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def recorded(request: Any) -> Any:
            began = time.perf_counter()
            result = call(request)
            self.calls.append((name, began, time.perf_counter()))
            return result

        return recorded

    def of(self, name: str) -> list[tuple[float, float]]:
        """Begin and end of the calls of a name, in their order."""
        return sorted((began, ended) for kind, began, ended in self.calls if kind == name)


@dataclass
class Job:
    """A stack, and a checkpoint of its first weights."""

    config: Any
    stack: Any
    rows: list[dict[str, Any]]
    first: Path

    def train(self, folder: Path, watched: Watched, *, overlaps: bool) -> list[dict[str, Any]]:
        """Train from the first weights; returns the metrics of the steps without durations."""
        from verl_omni.trainer import startup
        from verl_omni.trainer.main_diffusion import build_loop
        from verl_omni.trainer.run.run_folder import RunFolder
        from verl_omni.trainer.run.step_checkpoints import RunRequests

        assert startup.parts_of_step(self.config).sizes == [SAMPLES] * len(PROMPTS)
        self.stack.workers.load_checkpoint(str(self.first))
        run_folder = RunFolder(folder)
        loop = build_loop(self.config, watched.watching(), run_folder, self.rows, None, RunRequests(lambda: False))
        if not overlaps:
            loop.batches._parts = [SAMPLES * len(PROMPTS)]
        loop.fit(None)
        return [without_durations(line) for line in run_folder.metrics()]


@pytest.fixture(scope="module")
def job(start_tiny: Any, rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Job:
    config, stack = start_tiny(
        PROMPTS,
        f"data.train_batch_size={len(PROMPTS)}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={len(PROMPTS)}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.free_cache_engine=false",
        # The batch size affects rounding, and depends on the time at which requests arrive.
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "actor_rollout_ref.rollout.pipeline.num_inference_steps=20",  # an update is shorter than the generation
        "algorithm.global_std=false",
        "data.val_files=null",
        "trainer.save_freq=-1",
        "actor_rollout_ref.actor.checkpoint.async_save=false",
    )
    first = tmp_path_factory.mktemp("first")
    stack.workers.save_checkpoint(str(first))
    return Job(config, stack, rows(PROMPTS), first)


@pytest.fixture(autouse=True)
def enough_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine too, a step has parts."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_overlap_changes_no_number_of_a_run(job: Job, tmp_path: Path) -> None:
    one_after_the_other = Watched(job.stack)
    expected = job.train(tmp_path / "whole", one_after_the_other, overlaps=False)
    overlapping = Watched(job.stack)
    overlapped = job.train(tmp_path / "parts", overlapping, overlaps=True)
    assert overlapped == expected and [line["step"] for line in overlapped] == list(range(1, STEPS + 1))
    assert all(line["actor/grad_norm"] > 0 for line in overlapped)
    assert (len(one_after_the_other.of("generate")), len(one_after_the_other.of("update"))) == (STEPS, STEPS)
    trained = overlapping.of("part")
    parts = len(PROMPTS)
    assert (len(overlapping.sent), len(trained), overlapping.of("update")) == (STEPS * parts, STEPS * parts, [])
    hidden = []
    for step in range(STEPS):
        sent = overlapping.sent[parts * step : parts * (step + 1)]
        updates = trained[parts * step : parts * (step + 1)]
        ended = [part.began + part.seconds for part in sent]
        assert sent[-1].began < min(ended), "all parts are sent at once"
        assert all(began >= end for end, (began, _) in zip(ended, updates, strict=True)), "in their order"
        hidden.append(updates[0][0] < max(ended))
    assert any(hidden), "the first part is trained on before the last one is generated"


def test_a_step_that_fails_leaves_nothing_in_the_next_one(job: Job, tmp_path: Path) -> None:
    expected = job.train(tmp_path / "whole", Watched(job.stack), overlaps=True)
    failing = Watched(job.stack, fails_at=len(PROMPTS) - 1)
    with pytest.raises(RuntimeError, match="this part fails"):
        job.train(tmp_path / "failed", failing, overlaps=True)
    assert failing.of("part"), "gradients of its first parts are there"
    assert not list((tmp_path / "failed").glob("checkpoints/*"))
    assert job.train(tmp_path / "after", Watched(job.stack), overlaps=True) == expected
