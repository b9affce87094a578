"""DiffusionNFT: the loss against float64, and against its theorem."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import nft
from verl_omni.workers.algorithms.registered.diffusion_nft import DECAY_SCHEDULES

NUMBERS = st.floats(-3, 3)


FIXED = 1e3  # a divisor that no error here reaches: all weights are the same


def reference(v: np.ndarray, old: np.ndarray, target: np.ndarray, r: float, time: float, beta: float) -> float:
    """Theorem 3.2 with adaptive weights, written out for one row in float64, element by element."""
    squares = [0.0, 0.0]
    sizes = [0.0, 0.0]
    for theta, before, wanted in zip(v.ravel(), old.ravel(), target.ravel(), strict=True):
        for which, side in enumerate((beta, -beta)):
            error = time * (before + side * (theta - before) - wanted)
            squares[which] += error**2
            sizes[which] += abs(error)
    positive, negative = (square / max(size, 0.05 * v.size) for square, size in zip(squares, sizes, strict=True))
    return (r * positive + (1 - r) * negative) / beta


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=4, max_size=4),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.1, 2),
)
@settings(max_examples=80, deadline=None)
def test_the_loss_against_float64(values: list[tuple[float, float, float]], r: float, time: float, beta: float) -> None:
    v, old, target = (np.array(column).reshape(1, 2, 2) for column in zip(*values, strict=True))
    tensors = [torch.tensor(array, dtype=torch.float32) for array in (v, old, target)]
    loss = nft.loss(*tensors, torch.tensor([r]), torch.tensor([time]), beta=beta, least=0.05)
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(reference(v, old, target, r, time, beta), rel=1e-4, abs=1e-4)


def test_the_gradient_has_one_size_at_all_noise_levels_and_errors() -> None:
    """The loss weights cancel both: one row has ten times the error, another half the noise level."""
    target = torch.tensor([[1.0, 1.0], [10.0, 10.0], [1.0, 1.0]])
    v = torch.zeros(3, 2, requires_grad=True)
    time = torch.tensor([0.8, 0.8, 0.4])
    nft.loss(v, torch.zeros(3, 2), target, torch.ones(3), time, beta=0.5, least=1e-5).sum().backward()
    assert v.grad is not None
    # t is the derivative of the predicted clean latents.
    assert (v.grad / time.view(3, 1)).flatten().tolist() == pytest.approx([-1.0] * 6)


def test_the_minimum_of_the_loss_is_the_improved_policy() -> None:
    """Theorem 3.2: v* = v_old + (2 / beta) alpha (v+ - v_old), where v+ is what good samples alone would teach.

    Two samples that look alike once they are noisy, one good and one bad, teach the way from the bad one to the good
    one: with E[r] = 1/2 and alpha = E[r], v_old + (v+ - v_old) / beta.
    """
    beta = 0.5
    good = torch.tensor([[2.0, 0.0]])
    bad = torch.tensor([[0.0, 1.0]])
    old = (good + bad) / 2
    v = old.clone().double().requires_grad_(True)
    targets = torch.cat([good, bad]).double()
    optimizer = torch.optim.LBFGS([v], max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        both = v.expand(2, 2)
        before = old.double().expand(2, 2)
        ones = torch.ones(2)
        total = FIXED * nft.loss(both, before, targets, torch.tensor([1.0, 0.0]), ones, beta=beta, least=FIXED).mean()
        total.backward()
        return total

    optimizer.step(closure)
    assert torch.allclose(v.detach().float(), old + (good - old) / beta, atol=1e-5)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6), st.floats(0.5, 5))
@settings(max_examples=40, deadline=None)
def test_optimality_is_a_probability_monotonic_in_the_advantage(advantages: list[float], clip: float) -> None:
    values = nft.optimality(torch.tensor(advantages), clip)
    assert bool(((values >= 0) & (values <= 1)).all())
    assert values.tolist() == pytest.approx([0.5 + 0.5 * min(max(a / clip, -1), 1) for a in advantages], abs=1e-5)


def test_the_decay_of_the_old_policy_starts_at_0_and_grows_to_its_maximum() -> None:
    decays = [nft.old_decay(updates, rate=0.1, most=0.35) for updates in range(6)]
    assert decays == pytest.approx([0, 0.1, 0.2, 0.3, 0.35, 0.35])


def test_the_schedules_of_the_reference() -> None:
    """`return_decay` of the code of DiffusionNFT's authors, decay type 2: 75 updates without, 0.0075 each, to 0.999."""
    slow = DECAY_SCHEDULES["delayed_linear_to_0_999"]
    decays = [nft.old_decay(updates, **slow) for updates in (0, 75, 76, 100, 300)]
    assert decays == pytest.approx([0, 0, 0.0075, 0.1875, 0.999])
    assert nft.old_decay(500, **DECAY_SCHEDULES["copy"]) == 0
