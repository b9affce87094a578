"""Tests of Hydra overrides: the trainer parses the value that was formatted."""

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from omni_operator.plan.hydra import Value, format_assignment, format_literal

# No control characters: a job refuses them (api/base.py, `Line`).
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20) | st.text(
    "\\'\"${}[],:=() ab1.", max_size=9
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=6)


def arrived(value: Value) -> object:
    override = OverridesParser.create().parse_override(format_assignment("a.b", value))
    assert override.key_or_group == "a.b"
    return OmegaConf.to_container(OmegaConf.create({"x": override.value()}), resolve=True)["x"]


@given(values)
def test_any_value_is_parsed_unchanged(value: Value) -> None:
    assert arrived(value) == value


@pytest.mark.parametrize(
    "text", ["null", "True", "nan", "1", "1e3", ".0", "", " a", "${oc.env:HOME}", "it's", "a\\", "a\\'b"]
)
def test_a_string_that_looks_like_another_type_stays_a_string(text: str) -> None:
    assert arrived(text) == text


def test_paths_need_no_quotes() -> None:
    assert format_assignment("m.path", "/models/sd3-tiny_v1.0") == "m.path=/models/sd3-tiny_v1.0"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        format_literal(number)
