"""A run whose clip range excludes mainly one sign of the advantage, before anything was learned, says so once."""

from __future__ import annotations

import pytest

from verl_omni.trainer.metrics.run_warnings import clipping_text


def line(positive: float | None, negative: float | None, staleness: int = 0) -> dict[str, float | None]:
    shares = {"positive": positive, "negative": negative}
    return {
        "weights/staleness": staleness,
        **{f"actor/excluded_at_start_{sign}": share for sign, share in shares.items() if share is not None},
    }


@pytest.mark.parametrize(
    ("metrics", "warns"),
    [
        (line(0.0, 0.33), True),
        (line(0.5, 0.1), True),
        (line(0.4, 0.5), False),
        (line(0.0, 0.33, staleness=1), False),  # the policy has moved since these samples
        (line(None, 0.33), False),  # no sample with a positive advantage
        ({}, False),
    ],
    ids=str,
)
def test_a_clip_range_that_excludes_one_sign_is_named(metrics: dict[str, float | None], warns: bool) -> None:
    text = clipping_text(metrics)
    assert (text is not None) == warns
    if metrics == line(0.0, 0.33):
        assert "excluded 33% of the terms with a negative advantage and 0% of those with a positive one" in str(text)
