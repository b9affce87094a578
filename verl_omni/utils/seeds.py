"""PURE: seeds derived from one base seed."""

from __future__ import annotations

SEED_STRIDE = 1_000_003
SEED_RANGE = 2**63 - 1


def derived_seed(base: int, index: int) -> int:
    """(base * 1_000_003 + index) mod (2^63 - 1): neighbouring bases share no seed below 1,000,003 indices."""
    return (base * SEED_STRIDE + index) % SEED_RANGE
