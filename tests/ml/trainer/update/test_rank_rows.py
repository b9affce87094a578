"""The order in which rows go to the ranks: the mini-batches of one process, whatever their number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ml import smallest_job
from verl_omni.trainer.update import rank_rows

ACTOR = "actor_rollout_ref.actor"


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_the_mini_batches_of_all_ranks_together_are_those_of_one_process(
    groups: int, own_mini_batch: int, mini_batches: int, missing: int
) -> None:
    """Also of a last one that is shorter."""
    mini_batch = groups * own_mini_batch
    rows = mini_batch * mini_batches - groups * (missing % own_mini_batch)
    shares = rank_rows.order(rows, mini_batch, groups).chunk(groups)
    assert [len(share) for share in shares] == [rows // groups] * groups
    for number, expected in enumerate(torch.arange(rows).split(mini_batch)):
        together = torch.cat([share.split(own_mini_batch)[number] for share in shares])
        assert together.tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), [0, 1, 2, 3, 4, 5, 6, 7]),
        (("trainer.n_gpus_per_node=2",), [0, 1, 4, 5, 2, 3, 6, 7]),
        (("trainer.n_gpus_per_node=2", "trainer.nnodes=2"), [0, 4, 1, 5, 2, 6, 3, 7]),
        (("trainer.n_gpus_per_node=2", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2"), list(range(8))),
        (("trainer.n_gpus_per_node=2", f"{ACTOR}.ppo_mini_batch_size=4"), list(range(8))),
    ],
)
def test_a_run_has_the_order_of_its_ranks(overrides: tuple[str, ...], expected: list[int]) -> None:
    """Four prompts with two rows each, and two mini-batches unless said otherwise."""
    config = smallest_job.load("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=2", *overrides)
    assert rank_rows.order_of_run(config, 8, 2).tolist() == expected
