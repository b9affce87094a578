"""Order of the prompts: a function of seed and epoch, computed once per epoch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.trainer.data.prompt_dataset import PromptOrder, epoch_order

SIZES = st.integers(1, 30)
BATCHES = st.integers(1, 70)
SEEDS = st.integers(0, 1000)


@given(SIZES, BATCHES, SEEDS)
@settings(deadline=None, max_examples=60)
def test_every_epoch_is_the_permutation_of_its_seed(size: int, batch: int, seed: int) -> None:
    order = PromptOrder(size, batch, seed)
    steps = -(-3 * size // batch)
    used = [row for step in range(1, steps + 1) for row in order.rows(step)]
    assert len(used) == steps * batch
    for epoch in range(3):
        rows = used[epoch * size : (epoch + 1) * size]
        assert rows == epoch_order(size, seed, epoch).tolist() and sorted(rows) == list(range(size))


@given(SIZES, BATCHES, SEEDS, st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_a_resumed_run_continues_the_order(size: int, batch: int, seed: int, first: int) -> None:
    unbroken = PromptOrder(size, batch, seed)
    resumed = PromptOrder(size, batch, seed)
    expected = [unbroken.rows(step) for step in range(1, first + 4)]
    assert [resumed.rows(step) for step in range(first, first + 4)] == expected[first - 1 :]


@pytest.mark.parametrize(("seed", "epoch", "own"), [(7, 3, 7_000_024), (2**44, 1, (2**44 * 1_000_003 + 1) % 2**63)])
def test_the_order_of_an_epoch_stays_the_same_over_versions(seed: int, epoch: int, own: int) -> None:
    """A run that is resumed with a later version must not get rows again that it had."""
    expected = torch.randperm(50, generator=torch.Generator().manual_seed(own))
    assert torch.equal(epoch_order(50, seed, epoch), expected)


@pytest.mark.parametrize(("size", "batch"), [(0, 3), (3, 0)])
def test_an_empty_data_set_or_batch_is_refused(size: int, batch: int) -> None:
    with pytest.raises(ValueError, match=f"size and batch must be positive: {size}, {batch}"):
        PromptOrder(size, batch, seed=0)
