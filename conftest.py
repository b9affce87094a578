"""Hooks of every test: what makes all of them faster, and Hypothesis without its limits in seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Tests assert no seconds, and on a busy machine an example that is slow once is then shrunk for minutes.
settings.register_profile("without-deadline", settings(), deadline=None)
settings.load_profile("without-deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt what collection imported (torch, verl) from garbage collections, a tenth of the time of the fast tests."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()
