"""Steps of a run whose update overlaps its generation: the same optimizer steps as without."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto

from tests.ml.trainer.runs_in_memory import RunInMemory, job_in_memory, prompt_rows, run_in_memory, stack_of
from verl_omni.reward_loop.scorer_results import ScoringFailure, TooManyUnscored
from verl_omni.samples import GENERATED, Sample
from verl_omni.utils.columns import objects

pytestmark = pytest.mark.slow  # composes all settings for each

PROMPTS = 8
SAMPLES = 4
ROWS = prompt_rows(map(str, range(PROMPTS)))


class Trained:
    """Engines and the trainer's rank. A row's gradient is its advantage times the row's recorded number.

    Args:
        scores: of all samples of a step, by their places in it.
        fails_at: place of a sample that the engine cannot generate.
    """

    def __init__(self, scores: torch.Tensor, fails_at: int | None = None) -> None:
        self.events: list[str] = []
        self.steps: list[float] = []
        self.gradient = 0.0
        self.served = 0
        self._scores = scores
        self._fails_at = fails_at

    def send(self, prompts: DataProto) -> Any:
        first = int(prompts.non_tensor_batch["_rollout_seed_global_idx"][0])
        self.events.append(f"sent {first}")
        return SimpleNamespace(prompts=prompts, seconds=0.0, first=first)

    def receive(self, sent: Any) -> DataProto:
        return self.generate_sequences(sent.prompts)

    def abandon(self, batches: list[Any]) -> None:
        self.events.append(f"abandoned {[sent.first for sent in batches]}")

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        places = torch.as_tensor(prompts.non_tensor_batch["_rollout_seed_global_idx"].astype(np.int64))
        first = int(places[0])
        if self._fails_at is not None and self._fails_at in places.tolist():
            raise RuntimeError("the engine is lost")
        self.events.append(f"generated {first}-{int(places[-1])}")
        rows = len(places)
        failures = [ScoringFailure("no face") if is_nan else None for is_nan in self._scores[places].isnan()]
        return DataProto(
            batch=TensorDict(
                {
                    "rm_scores": self._scores[places][:, None],
                    "rollout_log_probs": torch.zeros(rows, 1),
                    "all_timesteps": (places + 1.0)[:, None],
                },
                batch_size=rows,
            ),
            non_tensor_batch={
                **prompts.non_tensor_batch,
                GENERATED: objects([Sample(failure=failure, version=self.served) for failure in failures]),
            },
            meta_info={"timing": {"agent_loop/slowest/compute_score": 0.1 * first}},
        )

    def update_actor(self, data: DataProto) -> DataProto:
        self.gradient = self._of(data)
        return self._stepped()

    def update_part(self, data: DataProto) -> DataProto:
        part = data.meta_info["part"]
        self.events.append(f"trained {len(data)}")
        self.gradient = self._of(data) + (0.0 if part["is_first"] else self.gradient)
        if not part["is_last"]:
            return DataProto(meta_info={"metrics": {}})
        self.gradient *= part["scale"]
        return self._stepped()

    def _of(self, data: DataProto) -> float:
        weights = data.batch["all_timesteps"].flatten().double()
        return float((weights * data.batch["advantages"].clamp(-5, 5)).sum())

    def _stepped(self) -> DataProto:
        self.steps.append(self.gradient)
        return DataProto(meta_info={"metrics": {"actor/optimizer_steps": [1.0]}})

    def update_weights(self, global_steps: int) -> None:
        self.served = global_steps
        self.events.append(f"published {global_steps}")

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "weights").write_text("w")


@pytest.fixture(autouse=True)
def enough_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine too, a step has parts."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(folder: Path, stack: Trained, *overrides: str) -> RunInMemory:
    config = job_in_memory(
        f"data.train_batch_size={PROMPTS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
        f"actor_rollout_ref.rollout.n={SAMPLES}",
        "actor_rollout_ref.actor.checkpoint.async_save=false",
        "actor_rollout_ref.rollout.free_cache_engine=false",
        "data.val_files=null",
        "data.shuffle=false",
        *overrides,
    )
    return run_in_memory(config, stack_of(stack), folder, ROWS, None)


def scores(seed: int = 0) -> torch.Tensor:
    return torch.rand(PROMPTS * SAMPLES, generator=torch.Generator().manual_seed(seed))


WHOLE = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1000"  # one micro-batch: no overlap


@pytest.mark.parametrize("global_std", ["false", "true"])
def test_the_optimizer_step_is_that_of_a_run_without_overlap(tmp_path: Path, global_std: str) -> None:
    runs = {}
    for name, overrides in (("whole", [WHOLE]), ("parts", [])):
        stack = Trained(scores())
        running = run(tmp_path / name, stack, f"algorithm.global_std={global_std}", *overrides)
        running.fit(None)
        (line,) = [line for line in running.folder.metrics() if line["step"] == 1]
        runs[name] = stack, {key: value for key, value in line.items() if key.startswith(("reward/", "rollout/samp"))}
    unsplit = runs["whole"][0]
    parts = runs["parts"][0]
    assert unsplit.events == ["published 0", "generated 0-31", "published 1"]
    assert parts.events == [
        "published 0",
        *(f"sent {first}" for first in (0, 8, 16, 24)),
        *("generated 0-7", "trained 8", "generated 8-15", "trained 8"),
        *("generated 16-23", "trained 8", "generated 24-31", "trained 8"),
        "published 1",
    ]
    # In float32, for the advantages of a batch with one standard deviation are multiplied by the quotient of two.
    assert parts.steps == pytest.approx(unsplit.steps, rel=1e-5 if global_std == "true" else 0, abs=0)
    assert runs["parts"][1] == runs["whole"][1] and runs["whole"][1]


def test_advantages_that_the_loss_clips_are_trained_on_in_one_update(tmp_path: Path) -> None:
    rewards = torch.zeros(PROMPTS * SAMPLES)
    rewards[0] = 0.01
    rewards[-1] = 1.0  # its advantage, divided by the deviation of the first part, is beyond the limit
    steps = []
    for name, overrides in (("whole", [WHOLE]), ("parts", [])):
        stack = Trained(rewards)
        run(tmp_path / name, stack, *overrides).fit(None)
        steps.append(stack.steps)
    assert "trained 8" in stack.events and len(steps[1]) == 1
    assert steps[1] == steps[0]


@pytest.mark.parametrize(("fails_at", "left"), [(0, [0, 8, 16, 24]), (20, [16, 24]), (31, [24])])
def test_a_part_that_fails_ends_the_run_before_the_optimizer_step(
    tmp_path: Path, fails_at: int, left: list[int]
) -> None:
    stack = Trained(scores(), fails_at)
    running = run(tmp_path, stack)
    with pytest.raises(RuntimeError, match="the engine is lost"):
        running.fit(None)
    assert stack.steps == [] and "published 1" not in stack.events
    assert stack.events[-1] == f"abandoned {left}"
    assert not list(tmp_path.glob("checkpoints/*"))


def test_further_parts_are_abandoned_when_an_update_fails(tmp_path: Path) -> None:
    stack = Trained(scores())
    running = run(tmp_path, stack)

    def fail(data: DataProto) -> DataProto:
        raise RuntimeError("the rank is gone")

    stack.update_part = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the rank is gone"):
        running.fit(None)
    assert stack.steps == [] and stack.events[-2:] == ["generated 0-7", "abandoned [8, 16, 24]"]


def test_failed_scores_are_counted_over_all_parts(tmp_path: Path) -> None:
    rewards = scores()
    rewards[[0, 9, 30]] = torch.nan
    allowed = run(tmp_path / "allowed", stack := Trained(rewards), "reward.max_failed_share=0.1")
    allowed.fit(None)
    assert len(stack.steps) == 1
    running = run(tmp_path / "refused", stack := Trained(rewards), "reward.max_failed_share=0.06")
    with pytest.raises(TooManyUnscored, match="3"):
        running.fit(None)
    assert stack.steps == []
