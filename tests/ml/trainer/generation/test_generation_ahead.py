"""Generation of batches ahead of the trainer: schedule, overlap, failures, settings."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ml import smallest_job
from tests.ml.trainer.runs_in_memory import AHEAD, ASYNC, STRATEGY, THRESHOLD
from verl_omni.trainer.generation.generation_ahead import GenerationAhead
from verl_omni.trainer.settings import async_settings, configuration
from verl_omni.weight_sync.errors import TooFewReplicas, is_loss_of_replicas

BYPASS = "algorithm.rollout_correction.bypass_mode"
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"
WAIT = 30.0  # seconds until a thread that should have run is missed


def test_the_next_batch_is_generated_while_the_trainer_updates() -> None:
    begun = {step: threading.Event() for step in range(1, 4)}
    generation = GenerationAhead(lambda step, version: begun[step].set(), ahead=1, first=0, last=3)
    for step in range(1, 4):
        generation.start(step - 1)
        generation.take(step)
        assert step == 3 or begun[step + 1].wait(WAIT), "waits for the update"
        generation.drain()


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
    ahead=st.integers(0, 3),
    first=st.integers(0, 2),
    steps=st.integers(1, 8),
    losses=st.lists(st.booleans(), max_size=12),
)
def test_every_batch_is_generated_once_by_the_version_of_the_schedule_also_after_losses(
    ahead: int, first: int, steps: int, losses: list[bool]
) -> None:
    served = first
    drawn = []
    left = list(losses)

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
        assert any(losses) or batch[1] == max(first, step - 1 - ahead)
        generation.drain()
        served = step
    assert drawn == list(range(first + 1, first + steps + 1)), "each batch once, in order"


def test_another_error_than_a_loss_is_raised_by_the_drain() -> None:
    def generate(step: int, version: int) -> None:
        raise TooFewReplicas("lost") if step == 1 else ConnectionError("refused")

    loss = GenerationAhead(generate, ahead=1, first=0, last=1, is_loss=is_loss_of_replicas)
    loss.start(0)
    loss.drain()
    refused = GenerationAhead(generate, ahead=1, first=1, last=2, is_loss=is_loss_of_replicas)
    refused.start(1)
    with pytest.raises(ConnectionError):
        refused.drain()


def test_a_stopped_generation_makes_no_further_batch_and_is_joined_after_the_running_one() -> None:
    drawn = []
    stopped = threading.Event()

    def generate(step: int, version: int) -> None:
        assert stopped.wait(WAIT)
        drawn.append(step)

    generation = GenerationAhead(generate, ahead=3, first=0, last=4)
    generation.start(0)
    generation.stop()
    threading.Timer(0.2, stopped.set).start()
    generation.join()
    assert drawn == [1], "join returned while a batch was being generated"
    with pytest.raises(RuntimeError, match="the run has ended"):
        generation.drain()


@pytest.mark.slow  # composes all settings for each
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.v1.trainer_mode=separate_async"], "is not read with trainer.use_v1=false"),
        (["trainer.use_v1=true", "trainer.v1.trainer_mode=colocate_async"], "colocate_async is not supported; write"),
        ([*ASYNC[:2]], "separate_async needs replicas on accelerators of their own; write"),
        ([*ASYNC, "algorithm.sample_source=offline"], "nothing is generated with algorithm.sample_source=offline"),
        ([f"{AHEAD}=2"], f"{AHEAD}: is not read with trainer.v1.trainer_mode=sync"),
        ([*ASYNC, f"{AHEAD}=-1"], "must be a whole number of batches, from 0: -1"),
        ([*ASYNC, f"{AHEAD}=8"], "samples generated 8 batches ahead span 9 versions, more than 8"),
        ([*ASYNC, f"{THRESHOLD}=0"], "must be at least 1, or null: 0"),
        ([*ASYNC, f"{STRATEGY}=discard"], "discard is not supported; write wait or drop"),
        ([*ASYNC, f"{STRATEGY}=drop", f"{THRESHOLD}=0"], "must be at least 1, or null: 0"),
        (
            [
                *ASYNC,
                "trainer.v1.separate_async.parameter_sync_step=4",
                "data.train_batch_size=8",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            ],
            "has data.train_batch_size=8 /",
        ),
        (["trainer.v1.sampler.drop_incomplete_groups=true"], "a sample that fails ends the run"),
    ],
)
def test_what_is_not_supported_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(configuration.SettingsError) as refused:
        smallest_job.load(*overrides)
    assert message in str(refused.value)


@pytest.mark.slow
def test_the_number_of_batches_ahead() -> None:
    for overrides, ahead in (
        ((), 0),
        (ASYNC, 1),
        ((*ASYNC, f"{AHEAD}=2"), 2),
        ((*ASYNC, f"{AHEAD}=9", f"{THRESHOLD}=null"), 9),
        ((*ASYNC, "trainer.v1.separate_async.sync_compatible=true"), 0),
        (("trainer.use_v1=true",), 0),
        ((*ASYNC, f"{AHEAD}=4", f"{STRATEGY}=drop", f"{THRESHOLD}=3"), 2),
        ((*ASYNC, f"{STRATEGY}=drop"), 1),
        ((*ASYNC, f"{STRATEGY}=drop", f"{THRESHOLD}=1"), 0),
        ((*ASYNC, f"{AHEAD}=9", f"{STRATEGY}=drop", f"{THRESHOLD}=null"), 9),
    ):
        assert async_settings.batches_ahead(smallest_job.load(*overrides)) == ahead


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (ASYNC, "up to 1 version of the weights old"),
        ((*ASYNC, f"{AHEAD}=2"), "up to 2 versions of the weights old"),
        ((), None),
        ((*ASYNC, f"{AHEAD}=0"), None),
        ((*ASYNC, "trainer.v1.separate_async.sync_compatible=true"), None),
        ((*ASYNC, f"{BYPASS}=true"), None),
        (
            (
                *ASYNC,
                "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
                "algorithm.rollout_correction.rollout_rs_threshold=0.999_1.001",
            ),
            None,
        ),
        ((*ASYNC, f"{LOSS}=flow_dppo"), None),
        ((*ASYNC, f"{LOSS}=diffusion_nft"), None),
    ],
)
def test_a_run_with_older_samples_and_no_limit_is_warned(overrides: tuple[str, ...], warning: str | None) -> None:
    """Flow-DPPO cannot take the engine's log-probabilities, DiffusionNFT has no ratio: there is nothing to write."""
    text = async_settings.unlimited_text(smallest_job.load(*overrides))
    if warning is None:
        assert text is None
    else:
        assert text is not None and warning in text and f"Write {BYPASS}=true" in text
