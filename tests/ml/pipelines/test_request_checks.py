"""Checks of a request before it joins a batch."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.pipelines.engine_requests import sde_window
from verl_omni.pipelines.request_checks import check_request
from verl_omni.pipelines.sample_shapes import size_check

STEPS = 4
CONFIGS = {"vae": {"block_out_channels": [8] * 4}, "transformer": {"patch_size": 2, "pos_embed_max_size": 4}}
NAMES = (
    "noise_level",
    "sde_window_size",
    "sde_window_range",
    "sde_type",
    "sample_strategy",
    "iters_per_group",
    "sde_window_seed",
    "global_steps",
    "sde_contiguous",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["cps", "random"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def check(extra: dict[str, Any]) -> None:
    check_request(SimpleNamespace(height=None, width=None, extra_args=extra), lambda height, width: None, steps=STEPS)


@given(extra=st.dictionaries(st.sampled_from(NAMES), JSON), seed=st.integers(0, 2**32))
def test_what_is_accepted_places_a_window(extra: dict[str, Any], seed: int) -> None:
    """Anything else is a ValueError."""
    try:
        check(extra)
    except ValueError:
        return
    window = sde_window(extra, STEPS, seed)
    assert window is None or (set(window.steps) <= set(range(STEPS)) and math.isfinite(window.noise_level))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"noise_level": "abc"}, "could not convert"),
        ({"noise_level": math.nan}, "finite"),
        ({"noise_level": math.inf}, "finite"),
        ({"noise_level": 1e30}, "at most"),
        ({"noise_level": [1]}, "list"),
        ({"noise_level": 0.7, "sde_window_size": 9}, "does not fit"),
        ({"noise_level": 0.7, "sde_window_range": [0]}, "index"),
        ({"noise_level": 0.7, "sde_type": "no"}, "sde_type"),
        ({"noise_level": 0.7, "sample_strategy": "no"}, "sample_strategy"),
        ({"sde_noise_seed": 2**70}, "unpack"),
        ({"sde_noise_seed": "a"}, "invalid literal"),
    ],
)
def test_an_invalid_extra_argument_is_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"extra argument of the SDE window: .*{words}"):
        check(extra)


def size(height: int | None, width: int | None) -> Any:
    return SimpleNamespace(height=height, width=width, extra_args=None)


@pytest.mark.parametrize(
    ("height", "width", "words"),
    [
        (24, 32, "height must be a multiple of 16, not 24"),
        (32, 0, "width must be a multiple of 16, not 0"),
        (32, -16, "width must be a multiple of 16"),
        (128, 32, "height must be at most 64, not 128"),
    ],
)
def test_a_size_that_no_sample_has_is_refused(height: int, width: int, words: str, tmp_path: Path) -> None:
    for name, config in CONFIGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    sides = size_check("StableDiffusion3Pipeline", tmp_path)
    with pytest.raises(ValueError, match=words):
        check_request(size(height, width), sides, steps=STEPS)
    for accepted in (size(64, 16), size(None, None)):
        check_request(accepted, sides, steps=STEPS)
