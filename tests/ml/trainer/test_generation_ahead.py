"""Generation of batches ahead of the trainer: schedule, overlap, failures, settings."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from verl import DataProto

from verl_omni.agent_loop.rows import SampleFailed
from verl_omni.trainer import checkpoints, generation_ahead, process_counts, settings
from verl_omni.trainer.generation_ahead import GenerationAhead
from verl_omni.trainer.loop import LOSSES_OF_ALL_REPLICAS, DiffusionTrainer, Interrupted
from verl_omni.trainer.run_folder import RunFolder
from verl_omni.weight_sync.errors import TooFewReplicas, is_loss_of_replicas

REQUIRED = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
ASYNC = ("trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=1")
AHEAD = "trainer.v1.separate_async.num_warmup_batches"
THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"
STRATEGY = "trainer.v1.sampler.max_off_policy_strategy"
WAIT = 30.0  # seconds until a thread that should have run is missed


BYPASS = "algorithm.rollout_correction.bypass_mode"
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"


@given(ahead=st.integers(0, 4), first=st.integers(0, 5), steps=st.integers(0, 12))
def test_every_batch_is_generated_once_by_the_version_of_the_schedule(ahead: int, first: int, steps: int) -> None:
    served, drawn = first, []

    def generate(step: int, version: int) -> tuple[int, int]:
        assert version == served, "the engines have other weights than the schedule says"
        drawn.append(step)
        return step, version

    generation = GenerationAhead(generate, ahead=ahead, first=first, last=first + steps)
    for step in range(first + 1, first + steps + 1):
        generation.start(step - 1)
        assert generation.take(step) == (step, max(first, step - 1 - ahead))
        generation.drain()
        served = step
    assert drawn == list(range(first + 1, first + steps + 1))


def test_the_next_batch_is_generated_while_the_trainer_updates() -> None:
    begun = {step: threading.Event() for step in range(1, 4)}
    generation = GenerationAhead(lambda step, version: begun[step].set(), ahead=1, first=0, last=3)
    for step in range(1, 4):
        generation.start(step - 1)
        generation.take(step)
        assert step == 3 or begun[step + 1].wait(WAIT), "waits for the update"
        generation.drain()


def test_no_batch_is_generated_before_the_weights_that_it_needs() -> None:
    drawn: list[int] = []
    generation = GenerationAhead(lambda step, version: drawn.append(step), ahead=1, first=0, last=5)
    generation.start(0)
    generation.drain()
    assert drawn == [1, 2]


def test_an_error_of_the_generation_is_raised_for_its_batch_and_those_after_it() -> None:
    def generate(step: int, version: int) -> int:
        if step == 2:
            raise ConnectionError("replica 1 is gone")
        return step

    generation = GenerationAhead(generate, ahead=2, first=0, last=3)
    generation.start(0)
    assert generation.take(1) == 1
    for get in (generation.drain, lambda: generation.take(2), lambda: generation.take(3)):
        with pytest.raises(ConnectionError, match="replica 1 is gone"):
            get()


@given(
    ahead=st.integers(1, 3), first=st.integers(0, 2), steps=st.integers(1, 8),
    losses=st.lists(st.booleans(), max_size=12),
)  # fmt: skip
def test_batches_of_lost_replicas_are_generated_by_the_version_that_is_published_next(
    ahead: int, first: int, steps: int, losses: list[bool]
) -> None:
    served, drawn, left = first, [], list(losses)

    def generate(step: int, version: int) -> tuple[int, int]:
        assert version == served, "a replica has no other weights than the current ones"
        if left and left.pop():
            raise TooFewReplicas("all rollout replicas are lost")
        drawn.append(step)
        return step, version

    generation = GenerationAhead(
        generate, ahead=ahead, first=first, last=first + steps, is_loss=lambda error: isinstance(error, TooFewReplicas)
    )
    for step in range(first + 1, first + steps + 1):
        while True:
            generation.start(step - 1)
            try:
                batch = generation.take(step)
                break
            except TooFewReplicas:
                served = step - 1  # the weights are published again, to other replicas
        assert batch == (step, generation.version(step))
        assert max(first, step - 1 - ahead) <= batch[1] <= step - 1, "no sample is older than without a loss"
        generation.drain()
        served = step
    assert drawn == list(range(first + 1, first + steps + 1)), "each batch once, in order"


def test_another_error_than_a_loss_is_raised_by_the_drain() -> None:
    def generate(step: int, version: int) -> None:
        raise TooFewReplicas("lost") if step == 1 else ConnectionError("refused")

    loss = GenerationAhead(generate, ahead=1, first=0, last=1, is_loss=is_loss_of_replicas)
    loss.start(0)
    loss.drain()
    other = GenerationAhead(generate, ahead=1, first=1, last=2, is_loss=is_loss_of_replicas)
    other.start(1)
    with pytest.raises(ConnectionError):
        other.drain()


def test_a_stopped_generation_makes_no_further_batch() -> None:
    drawn, stopped = [], threading.Event()

    def generate(step: int, version: int) -> None:
        drawn.append(step)
        assert stopped.wait(WAIT)

    generation = GenerationAhead(generate, ahead=3, first=0, last=4)
    generation.start(0)
    generation.stop()
    stopped.set()
    with pytest.raises(RuntimeError, match="the run has ended"):
        generation.drain()
    assert drawn == [1]


def test_a_joined_generation_has_no_thread_any_more() -> None:
    drawn, stopped = [], threading.Event()

    def generate(step: int, version: int) -> None:
        assert stopped.wait(WAIT)
        drawn.append(step)

    generation = GenerationAhead(generate, ahead=3, first=0, last=4)
    generation.start(0)
    generation.stop()
    threading.Timer(0.2, stopped.set).start()
    generation.join()
    assert drawn == [1], "join returned while a batch was being generated"


@pytest.mark.slow  # composes all settings for each
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.v1.trainer_mode=separate_async"], "is not read with trainer.use_v1=false"),
        (["trainer.use_v1=true", "trainer.v1.trainer_mode=colocate_async"], "colocate_async is not supported; write"),
        ([*ASYNC[:2]], "separate_async needs replicas on accelerators of their own; write"),
        ([*ASYNC, "algorithm.sample_source=offline"], "nothing is generated with algorithm.sample_source=offline"),
        ([f"{AHEAD}=2"], f"{AHEAD}: is not read with trainer.v1.trainer_mode=sync"),
        ([*ASYNC, f"{AHEAD}=1.5"], "must be a whole number of batches, from 0: 1.5"),
        ([*ASYNC, f"{AHEAD}=8"], "samples generated 8 batches ahead span 9 versions, more than 8"),
        ([*ASYNC, f"{THRESHOLD}=0"], "must be at least 1, or null: 0"),
        ([*ASYNC, f"{STRATEGY}=discard"], "discard is not supported; write wait or drop"),
        ([*ASYNC, f"{STRATEGY}=drop", f"{THRESHOLD}=0"], "must be at least 1, or null: 0"),
        ([*ASYNC, "trainer.v1.separate_async.parameter_sync_step=4", "data.train_batch_size=8",
          "actor_rollout_ref.actor.ppo_mini_batch_size=4"], "has data.train_batch_size=8 /"),
        (["trainer.v1.sampler.drop_incomplete_groups=true"], "a sample that fails ends the run"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(settings.SettingsError) as refused:
        settings.load([*REQUIRED, *overrides])
    assert said in str(refused.value)


@pytest.mark.slow
def test_the_number_of_batches_ahead() -> None:
    for overrides, ahead in (
        ((), 0), (ASYNC, 1), ((*ASYNC, f"{AHEAD}=2"), 2), ((*ASYNC, f"{AHEAD}=9", f"{THRESHOLD}=null"), 9),
        ((*ASYNC, "trainer.v1.separate_async.sync_compatible=true"), 0),
        (("trainer.use_v1=true",), 0),
        ((*ASYNC, f"{AHEAD}=4", f"{STRATEGY}=drop", f"{THRESHOLD}=3"), 2),
        ((*ASYNC, f"{STRATEGY}=drop"), 1), ((*ASYNC, f"{STRATEGY}=drop", f"{THRESHOLD}=1"), 0),
        ((*ASYNC, f"{AHEAD}=9", f"{STRATEGY}=drop", f"{THRESHOLD}=null"), 9),
    ):  # fmt: skip
        assert generation_ahead.batches_ahead(settings.load([*REQUIRED, *overrides])) == ahead


class Trained:
    """Replicas and ranks of the loop: remembers which prompts each update got, and the versions that generated them."""

    def __init__(self) -> None:
        self.served = 0
        self.updates: list[tuple[str, ...]] = []
        self.versions: list[int] = []
        self.tolerances: list[tuple[float, float]] = []

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        rows = len(prompts)
        tensors = {"rm_scores": torch.arange(rows).float()[:, None], "rollout_log_probs": torch.zeros(rows, 1)}
        version = np.full(rows, self.served, dtype=object)
        columns = {**prompts.non_tensor_batch, "global_steps": version}
        place = torch.tensor([int(info["prompt"]) for info in prompts.non_tensor_batch["extra_info"]])
        return DataProto(
            batch=TensorDict({**tensors, "all_timesteps": place[:, None]}, batch_size=rows), non_tensor_batch=columns
        )

    def update_actor(self, data: DataProto) -> DataProto:
        self.updates.append(tuple(data.batch["all_timesteps"].flatten().tolist()))
        self.tolerances.append(tuple(data.meta_info["request"][f"{name}tolerance"] for name in ("", "velocity_")))
        return DataProto(meta_info={"metrics": {"actor/optimizer_steps": [1.0]}})

    def update_weights(self, global_steps: int) -> dict[str, list[str]]:
        self.served = global_steps
        return {}

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "weights").write_text("w")

    def load_checkpoint(self, folder: str) -> None:
        assert (Path(folder) / "weights").is_file()


def trainer(folder: Path, stack: Any, steps: int, *overrides: str) -> DiffusionTrainer:
    config = settings.load(
        [
            "data.train_files=t", "actor_rollout_ref.model.path=m", f"trainer.total_training_steps={steps}",
            "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline", "data.train_batch_size=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2", "trainer.save_freq=1",
            "actor_rollout_ref.actor.checkpoint.async_save=false", "data.val_files=null",
            "actor_rollout_ref.rollout.dtype=float32",
            "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=float32", *ASYNC, *overrides,
        ]
    )  # fmt: skip
    process_counts.fill_in(config, cpus=2)
    rows = [
        {"raw_prompt": [{"role": "user", "content": str(row)}], "data_source": "brightness",
         "reward_model": {"ground_truth": ""}, "extra_info": {"prompt": str(row)}} for row in range(7)
    ]  # fmt: skip
    made = SimpleNamespace(
        agent_loop=stack, workers=stack, pool=None, judges=None, versions=lambda: [stack.served],
        weights=SimpleNamespace(update_weights=stack.update_weights, sleep_replicas=lambda: None),
        before_ray_ends=[],
    )  # fmt: skip
    return DiffusionTrainer(config, made, RunFolder(folder), rows, None, stop_requested=lambda: False)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 2])
def test_runs_that_are_killed_and_stopped_train_on_each_prompt_group_once(tmp_path: Path, ahead: int) -> None:
    steps, draw = 24, random.Random(ahead)
    whole = Trained()
    trainer(tmp_path / "whole", whole, steps, f"{AHEAD}={ahead}").fit(None)
    lines = RunFolder(tmp_path / "whole").metrics()
    assert [line["weights/staleness"] for line in lines] == [min(step, ahead) for step in range(steps)]
    assert all("timing_s/wait" in line for line in lines)

    trained: dict[int, tuple[str, ...]] = {}
    updates = stops = kills = 0
    while len(trained) < steps:
        stack, newest = Trained(), checkpoints.latest(tmp_path / "run" / "checkpoints")
        first = 0 if newest is None else checkpoints.step_of(newest)
        made = trainer(tmp_path / "run", stack, steps, f"{AHEAD}={ahead}")
        last = first + draw.randint(1, 2)
        if stops > kills // 4:
            kills += 1
            fail_after(stack, last - first)
        else:
            stops += 1
            made.stop_requested = lambda stack=stack, count=last - first: len(stack.updates) == count
        with contextlib.suppress(Interrupted, ConnectionError):
            made.fit(newest)
        trained |= {first + place: update for place, update in enumerate(stack.updates, 1)}
        updates += len(stack.updates)
    assert [trained[step] for step in range(1, steps + 1)] == whole.updates, "a prompt group was lost"
    assert updates == steps, "a prompt group was trained on twice"
    assert kills > 10 and stops > 1


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "staleness"), [(2, [0, 1, 1, 1, 1, 1]), (1, None)])
def test_no_sample_is_older_than_the_threshold_and_no_prompt_group_is_lost_with_the_strategy_drop(
    tmp_path: Path, threshold: int, staleness: list[int] | None
) -> None:
    whole, stack = Trained(), Trained()
    trainer(tmp_path / "whole", whole, 6).fit(None)
    limited = (f"{AHEAD}=4", f"{STRATEGY}=drop", f"{THRESHOLD}={threshold}")
    made = trainer(tmp_path / "limited", stack, 6, *limited)
    made.fit(None)
    assert stack.updates == whole.updates
    lines = made.folder.metrics()
    assert [line.get("weights/staleness") for line in lines] == (staleness or [None] * 6), "None: synchronous"


def fail_after(stack: Trained, updates: int) -> None:
    """The update after that many fails, as if a rank had been killed."""
    update = stack.update_actor

    def failing(data: DataProto) -> DataProto:
        if len(stack.updates) == updates:
            raise ConnectionError("the rank is gone")
        return update(data)

    stack.update_actor = failing  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_run_whose_replicas_are_all_lost_trains_on_each_prompt_group_once(tmp_path: Path) -> None:
    whole, stack = Trained(), Trained()
    trainer(tmp_path / "whole", whole, 6).fit(None)
    generate, calls = stack.generate_sequences, []

    def losing(prompts: DataProto) -> DataProto:
        calls.append(len(calls))
        if len(calls) in (1, 4):
            raise SampleFailed("row 0 of 4 failed: TooFewReplicas: [TooFewReplicas] all rollout replicas are lost")
        return generate(prompts)

    stack.generate_sequences = losing  # type: ignore[method-assign]
    trainer(tmp_path / "lost", stack, 6).fit(None)
    assert stack.updates == whole.updates
    found = [line["weights/staleness"] for line in RunFolder(tmp_path / "lost").metrics()]
    assert found == [0, 1, 0, 1, 1, 1], "the batch of step 3 has newer weights than without a loss"


@pytest.mark.slow
def test_a_run_whose_replicas_are_lost_again_and_again_ends(tmp_path: Path) -> None:
    stack, calls = Trained(), []

    def losing(prompts: DataProto) -> DataProto:
        calls.append(len(calls))
        raise SampleFailed("row 0 of 4 failed: TooFewReplicas: [TooFewReplicas] all rollout replicas are lost")

    stack.generate_sequences = losing  # type: ignore[method-assign]
    with pytest.raises(SampleFailed):
        trainer(tmp_path, stack, 6).fit(None)
    assert len(calls) == LOSSES_OF_ALL_REPLICAS + 1


def lost_in_evaluations(stack: Trained, *numbers: int) -> list[int]:
    """All replicas are lost in the calls for evaluations of these numbers. Returns the version of each call."""
    generate, calls = stack.generate_sequences, []

    def losing(prompts: DataProto) -> DataProto:
        if prompts.meta_info.get("validate"):
            calls.append(stack.served)
            if len(calls) - 1 in numbers:
                raise SampleFailed("row 0 of 4 failed: TooFewReplicas: [TooFewReplicas] all rollout replicas are lost")
        return generate(prompts)

    stack.generate_sequences = losing  # type: ignore[method-assign]
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("first", ["true", "false"], ids=["before the first step, too", "after steps only"])
def test_an_evaluation_that_loses_all_replicas_is_repeated_with_the_same_weights(tmp_path: Path, first: str) -> None:
    whole, stack = Trained(), Trained()
    trainer(tmp_path / "whole", whole, 4).fit(None)
    calls = lost_in_evaluations(stack, 0, 2, 3)
    made = trainer(tmp_path / "lost", stack, 4, "trainer.test_freq=2", f"trainer.val_before_train={first}")
    made.held_out = made.train
    made.fit(None)
    assert calls == ([0, 0, 2, 2, 2, 4] if first == "true" else [2, 2, 4, 4, 4])
    assert stack.updates == whole.updates
    evaluated = [line["step"] for line in made.folder.metrics() if "val/reward/mean" in line]
    assert evaluated == ([0, 2, 4] if first == "true" else [2, 4])


@pytest.mark.slow
def test_evaluations_that_lose_all_replicas_again_and_again_end_the_run(tmp_path: Path) -> None:
    stack = Trained()
    calls = lost_in_evaluations(stack, *range(10))
    made = trainer(tmp_path, stack, 4, "trainer.val_before_train=true")
    made.held_out = made.train
    with pytest.raises(SampleFailed):
        made.fit(None)
    assert calls == [0] * (LOSSES_OF_ALL_REPLICAS + 1)


@pytest.mark.slow
def test_log_probabilities_are_compared_for_samples_of_the_current_weights_only(tmp_path: Path) -> None:
    stack = Trained()
    made = trainer(tmp_path, stack, 3)
    made.fit(None)
    tolerance, none = made.config.trainer.max_log_prob_difference, float("inf")
    assert stack.tolerances == [(tolerance, 1e-3), (none, none), (none, none)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[2])["weights/staleness"] == 1


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (ASYNC, "up to 1 version of the weights old"),
        ((*ASYNC, f"{AHEAD}=2"), "up to 2 versions of the weights old"),
        ((), None), ((*ASYNC, f"{AHEAD}=0"), None), ((*ASYNC, "trainer.v1.separate_async.sync_compatible=true"), None),
        ((*ASYNC, f"{BYPASS}=true"), None), ((*ASYNC, "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
                                              "algorithm.rollout_correction.rollout_rs_threshold=0.999_1.001"), None),
        ((*ASYNC, f"{LOSS}=flow_dppo"), None), ((*ASYNC, f"{LOSS}=diffusion_nft"), None),
    ],
)  # fmt: skip
def test_a_run_with_older_samples_and_no_limit_is_warned(overrides: tuple[str, ...], said: str | None) -> None:
    """Flow-DPPO cannot take the engine's log-probabilities, DiffusionNFT has no ratio: there is nothing to write."""
    found = generation_ahead.unlimited_text(settings.load([*REQUIRED, *overrides]))
    assert said is None if found is None else said is not None and said in found and f"Write {BYPASS}=true" in found
