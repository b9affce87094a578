"""Runs whose batches are generated ahead: they train on each prompt group once after stops, kills and losses."""

import contextlib
import json
import random
from pathlib import Path

import pytest
from verl import DataProto

from tests.ml.trainer.runs_in_memory import AHEAD, STRATEGY, THRESHOLD, Trained, trainer
from verl_omni.agent_loop.rows import SampleFailed
from verl_omni.trainer.generation.sample_generator import LOSSES_OF_ALL_REPLICAS
from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.run_folder import RunFolder
from verl_omni.trainer.run.step_checkpoints import Interrupted


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 2])
def test_runs_that_are_killed_and_stopped_train_on_each_prompt_group_once(tmp_path: Path, ahead: int) -> None:
    steps = 24
    draw = random.Random(ahead)
    uninterrupted = Trained()
    trainer(tmp_path / "whole", uninterrupted, steps, f"{AHEAD}={ahead}").fit(None)
    lines = RunFolder(tmp_path / "whole").metrics()
    assert [line["weights/staleness"] for line in lines] == [min(step, ahead) for step in range(steps)]
    assert all("timing_s/wait" in line for line in lines)

    trained: dict[int, tuple[str, ...]] = {}
    updates = stops = kills = 0
    while len(trained) < steps:
        stack = Trained()
        newest = checkpoints.latest(tmp_path / "run" / "checkpoints")
        first = 0 if newest is None else checkpoints.step_of(newest)
        run = trainer(tmp_path / "run", stack, steps, f"{AHEAD}={ahead}")
        last = first + draw.randint(1, 2)
        if stops > kills // 4:
            kills += 1
            fail_after(stack, last - first)
        else:
            stops += 1
            run.requests.stop_wanted = lambda stack=stack, count=last - first: len(stack.updates) == count
        with contextlib.suppress(Interrupted, ConnectionError):
            run.fit(newest)
        trained |= {first + step: update for step, update in enumerate(stack.updates, 1)}
        updates += len(stack.updates)
    assert [trained[step] for step in range(1, steps + 1)] == uninterrupted.updates, "a prompt group was lost"
    assert updates == steps, "a prompt group was trained on twice"
    assert kills > 10 and stops > 1


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "staleness"), [(2, [0, 1, 1, 1, 1, 1]), (1, None)])
def test_no_sample_is_older_than_the_threshold_and_no_prompt_group_is_lost_with_the_strategy_drop(
    tmp_path: Path, threshold: int, staleness: list[int] | None
) -> None:
    synchronous = Trained()
    stack = Trained()
    trainer(tmp_path / "whole", synchronous, 6).fit(None)
    limited = (f"{AHEAD}=4", f"{STRATEGY}=drop", f"{THRESHOLD}={threshold}")
    run = trainer(tmp_path / "limited", stack, 6, *limited)
    run.fit(None)
    assert stack.updates == synchronous.updates
    lines = run.folder.metrics()
    assert [line.get("weights/staleness") for line in lines] == (staleness or [None] * 6), "None: synchronous"


def fail_after(stack: Trained, updates: int) -> None:
    """The update after that many fails, as if a rank had been killed."""
    update = stack.update_actor

    def failing(data: DataProto) -> DataProto:
        if len(stack.updates) == updates:
            raise ConnectionError("the rank is gone")
        return update(data)

    stack.update_actor = failing  # type: ignore[method-assign]


def lose_replicas(stack: Trained, *numbers: int, evaluations: bool = False) -> list[int]:
    """All replicas are lost in the calls for training, or for evaluations, of these numbers.

    Returns the version of each call.
    """
    generate = stack.generate_sequences
    calls = []

    def losing(prompts: DataProto) -> DataProto:
        if bool(prompts.meta_info.get("validate")) == evaluations:
            calls.append(stack.served)
            if len(calls) - 1 in numbers:
                raise SampleFailed("row 0 of 4 failed: TooFewReplicas: [TooFewReplicas] all rollout replicas are lost")
        return generate(prompts)

    stack.generate_sequences = losing  # type: ignore[method-assign]
    return calls


@pytest.mark.slow
def test_a_run_whose_replicas_are_all_lost_trains_on_each_prompt_group_once(tmp_path: Path) -> None:
    unbroken = Trained()
    stack = Trained()
    trainer(tmp_path / "whole", unbroken, 6).fit(None)
    lose_replicas(stack, 0, 3)
    trainer(tmp_path / "lost", stack, 6).fit(None)
    assert stack.updates == unbroken.updates
    staleness = [line["weights/staleness"] for line in RunFolder(tmp_path / "lost").metrics()]
    assert staleness == [0, 1, 0, 1, 1, 1], "the batch of step 3 has newer weights than without a loss"


@pytest.mark.slow
@pytest.mark.parametrize("evaluations", [False, True])
def test_a_run_whose_replicas_are_lost_again_and_again_ends(tmp_path: Path, evaluations: bool) -> None:
    stack = Trained()
    calls = lose_replicas(stack, *range(10), evaluations=evaluations)
    run = trainer(tmp_path, stack, 4, "trainer.val_before_train=true")
    run.loop.evaluation.rows = run.rows if evaluations else None
    with pytest.raises(SampleFailed):
        run.fit(None)
    assert calls == [0] * (LOSSES_OF_ALL_REPLICAS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["true", "false"], ids=["before the first step, too", "after steps only"])
def test_an_evaluation_that_loses_all_replicas_is_repeated_with_the_same_weights(tmp_path: Path, first: str) -> None:
    unbroken = Trained()
    stack = Trained()
    trainer(tmp_path / "whole", unbroken, 4).fit(None)
    calls = lose_replicas(stack, 0, 2, 3, evaluations=True)
    run = trainer(tmp_path / "lost", stack, 4, "trainer.test_freq=2", f"trainer.val_before_train={first}")
    run.loop.evaluation.rows = run.rows
    run.fit(None)
    assert calls == ([0, 0, 2, 2, 2, 4] if first == "true" else [2, 2, 4, 4, 4])
    assert stack.updates == unbroken.updates
    evaluated = [line["step"] for line in run.folder.metrics() if "val/reward/mean" in line]
    assert evaluated == ([0, 2, 4] if first == "true" else [2, 4])


@pytest.mark.slow
def test_log_probabilities_are_compared_for_samples_of_the_current_weights_only(tmp_path: Path) -> None:
    stack = Trained()
    run = trainer(tmp_path, stack, 3)
    run.fit(None)
    tolerance = run.config.trainer.max_log_prob_difference
    none = float("inf")
    assert stack.tolerances == [(tolerance, 1e-3), (none, none), (none, none)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[2])["weights/staleness"] == 1
