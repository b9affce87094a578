"""When updates move the policy too far, the trainer says so once for each sign."""

import pytest

from verl_omni.trainer.metrics import policy_drift
from verl_omni.trainer.metrics.collapse import ADVICE
from verl_omni.trainer.metrics.policy_drift import CLIP, SIGNS, DriftState

KL = "actor/kl"


def warnings(metric: str, values: list[float]) -> list[tuple[int, str]]:
    """The place of each warning, and its text."""
    state = DriftState()
    warned = []
    for place, value in enumerate(values):
        state, messages = policy_drift.observe(state, {metric: value, "reward/mean": 1.0})
        warned += [(place, message) for message in messages]
    return warned


def test_a_clip_fraction_that_rises_to_nearly_all_is_found_once() -> None:
    ((place, message),) = warnings(CLIP, [0.1] * 10 + [0.95] * 10)
    assert place == 14, "the first step whose average of five is beyond the limit"
    assert "the clip fraction is 95% in the last 5 steps, and was 10% in the first 5" in message
    assert message.endswith(ADVICE)


@pytest.mark.parametrize(
    "values",
    [[0.0] * 20, [0.95] * 20, [0.3] * 5 + [0.85] * 20, [0.1] * 10 + [1.0] * 3 + [0.1] * 10],
    ids=["one optimizer step", "limited from the first step on", "below the limit", "a few steps"],
)
def test_other_clip_fractions_give_no_warning(values: list[float]) -> None:
    assert warnings(CLIP, values) == []


@pytest.mark.parametrize("metric", SIGNS)
def test_a_large_distance_is_found_once_and_again_after_a_recovery(metric: str) -> None:
    limit = SIGNS[metric].limit
    rising = [0.04 * limit * step for step in range(60)]
    ((place, message),) = warnings(metric, rising)
    assert sum(rising[place - 4 : place + 1]) / 5 >= limit > sum(rising[place - 5 : place]) / 5
    assert f"{sum(rising[place - 4 : place + 1]) / 5:.3g}" in message
    assert message.endswith(SIGNS[metric].advice)
    high, middle, low = (share * limit for share in (1.4, 0.6, 0.2))
    assert [place for place, _ in warnings(metric, [high] * 6 + [middle] * 6 + [high] * 6)] == [4]
    assert [place for place, _ in warnings(metric, [high] * 6 + [low] * 6 + [high] * 6)] == [4, 15]
