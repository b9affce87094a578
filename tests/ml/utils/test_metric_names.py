"""How values of a metric are combined."""

import math

import pytest

from verl_omni.utils.metrics.metric_names import combine


@pytest.mark.parametrize("name", ["actor/ratio_max", "rollout_corr/max_abs_diff", "actor/loss"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_value_that_is_not_a_number_is_not_hidden_by_the_others(name: str, place: int) -> None:
    values = [1.0, 5.0, 3.0]
    assert combine(name, values) == (3.0 if name == "actor/loss" else 5.0)
    values[place] = math.nan
    assert math.isnan(combine(name, values))
