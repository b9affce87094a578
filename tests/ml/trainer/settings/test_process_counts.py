"""Numbers of workers and of requests in flight that a run derives from its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ml import smallest_job
from verl_omni.trainer.settings import process_counts
from verl_omni.trainer.settings.process_counts import RunSize

SIZES = st.builds(
    RunSize,
    nodes=st.integers(1, 64),
    replicas=st.integers(1, 512),
    samples=st.integers(1, 8192),
    engine_batch=st.integers(1, 256),
    cpus=st.integers(1, 256),
)


@pytest.mark.parametrize(
    ("size", "loops", "rewards", "requests"),
    [
        # a laptop: one process on the CPU
        (RunSize(nodes=1, replicas=1, samples=64, engine_batch=64, cpus=2), 1, 1, 128),
        (RunSize(nodes=1, replicas=2, samples=64, engine_batch=4, cpus=2), 1, 1, 16),
        # a node with eight accelerators, and one with sixteen
        (RunSize(nodes=1, replicas=8, samples=128, engine_batch=8, cpus=96), 1, 8, 128),
        (RunSize(nodes=1, replicas=16, samples=128, engine_batch=8, cpus=96), 2, 16, 128),
        # nodes: each has an agent-loop worker and a reward worker, also if an engine spans a node
        (RunSize(nodes=4, replicas=32, samples=1024, engine_batch=8, cpus=96), 4, 32, 128),
        (RunSize(nodes=4, replicas=4, samples=64, engine_batch=2, cpus=96), 4, 4, 4),
        # three workers would leave one of eight samples over; no number below six divides seven
        (RunSize(nodes=3, replicas=3, samples=8, engine_batch=1, cpus=8), 4, 3, 2),
        (RunSize(nodes=3, replicas=3, samples=7, engine_batch=1, cpus=8), 3, 3, 2),
        # fewer CPUs or samples than accelerators
        (RunSize(nodes=1, replicas=8, samples=128, engine_batch=8, cpus=8), 1, 4, 128),
        (RunSize(nodes=1, replicas=16, samples=128, engine_batch=8, cpus=1), 1, 1, 256),
        (RunSize(nodes=4, replicas=32, samples=2, engine_batch=8, cpus=96), 2, 2, 256),
    ],
)
def test_the_numbers_follow_from_nodes_engines_and_batch(
    size: RunSize, loops: int, rewards: int, requests: int
) -> None:
    assert process_counts.agent_loop_workers(size) == loops
    assert process_counts.reward_workers(size) == rewards
    assert process_counts.requests_in_flight(size, loops) == requests


@given(SIZES)
def test_there_is_at_least_one_worker_and_at_most_one_for_each_sample(size: RunSize) -> None:
    loops = process_counts.agent_loop_workers(size)
    rewards = process_counts.reward_workers(size)
    assert 1 <= loops <= size.samples and 1 <= rewards <= size.samples
    assert loops <= size.nodes * size.cpus
    assert loops >= min(size.nodes, size.samples), "a worker on every node"


ROLLOUT = "actor_rollout_ref.rollout"


def filled_in(*overrides: str) -> tuple[int, int, int]:
    """Agent-loop workers, requests in flight of each, and reward workers: two nodes with four engines each."""
    config = smallest_job.load(
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=8",
        "data.train_batch_size=16",
        f"{ROLLOUT}.n=8",
        f"{ROLLOUT}.max_num_seqs=4",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        *overrides,
    )
    process_counts.fill_in(config, cpus=32)
    rollout = config.actor_rollout_ref.rollout
    return rollout.agent.num_workers, rollout.max_concurrent_requests, config.reward.num_workers


@pytest.mark.parametrize(
    "name", ["reward.num_workers", f"{ROLLOUT}.agent.num_workers", f"{ROLLOUT}.max_concurrent_requests"]
)
def test_a_number_that_is_not_positive_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: must be at least 1, or null .*, not 0"):
        filled_in(f"{name}=0")


def test_one_line_names_the_numbers_of_a_run() -> None:
    settings = smallest_job.load(
        "trainer.n_gpus_per_node=8",
        "reward.num_workers=8",
        f"{ROLLOUT}.agent.num_workers=2",
        f"{ROLLOUT}.max_concurrent_requests=32",
        f"{ROLLOUT}.n_gpus_per_node=8",
    )
    line = "agent-loop workers: 2, each with up to 32 requests in flight; reward workers: 8"
    assert process_counts.describe(settings) == line
    assert process_counts.logical_cpus(settings) == 34
    settings.actor_rollout_ref.rollout.nnodes = 1
    assert (process_counts.local_accelerators(settings), process_counts.logical_cpus(settings)) == (16, 50)
    settings.reward.reward_model.enable = True
    assert (process_counts.local_accelerators(settings), process_counts.logical_cpus(settings)) == (16, 66), (
        "on the trainer's"
    )
    settings.reward.reward_model.update({"enable_resource_pool": True, "nnodes": 1, "n_gpus_per_node": 4})
    assert (process_counts.local_accelerators(settings), process_counts.logical_cpus(settings)) == (20, 58), (
        "on its own"
    )


def test_settings_that_are_null_are_filled_in_and_others_stay() -> None:
    assert filled_in() == (2, 32, 8), "eight engines of two accelerators: 2 x 8 x 4 requests for two workers"
    assert filled_in(f"{ROLLOUT}.agent.num_workers=4") == (4, 16, 8)
    assert filled_in(f"{ROLLOUT}.max_concurrent_requests=7") == (2, 7, 8)
    assert filled_in("reward.num_workers=3") == (2, 32, 3)
    scorer = ("reward.scorer=clip_score", "reward.scorer_kwargs.device=cuda")
    assert filled_in(*scorer) == (2, 32, 1), "it reserves an accelerator"
    assert filled_in(*scorer, "reward.num_workers=3") == (2, 32, 3)
