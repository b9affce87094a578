"""Hooks of every test: what makes all of them faster, and Hypothesis without its limits in seconds."""

from __future__ import annotations

import functools
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import typer.testing
from hypothesis import settings

# Before torch is imported. Tests on the engine fork a process, where OpenMP must have no threads: in a fork, its next
# parallel part waits for them for ever. `make test` sets this too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests assert no seconds, and on a busy machine an example that is slow once is then shrunk for minutes.
settings.register_profile("without-deadline", settings(), deadline=None)
settings.load_profile("without-deadline")
# For `make check`. Each run draws other examples, except in continuous integration, which draws them all.
settings.register_profile("before-a-commit", settings(), max_examples=25)

# `CliRunner.invoke` makes all commands of the application again, which takes longer than most tests.
typer.testing._get_command = functools.cache(typer.main.get_command)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt what collection imported (torch, verl) from garbage collections, a tenth of the time of the fast tests."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    # Configurations and YAML trees are many small objects that live until their test ends: with Python's own thresholds
    # a tenth of the time of the tests of settings goes into looking at them again and again.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the long files that wait for a later run of `make test` (tests/suite/long_tests.py)."""
    path = os.environ.get("LONG_TESTS_THAT_WAIT")
    if path is None:
        return
    waiting = json.loads(Path(path).read_text(encoding="utf-8"))
    files = {item: item.nodeid.partition("::")[0] for item in items}
    in_every_run = {file for item, file in files.items() if item.get_closest_marker("every_run") is not None}
    for item, file in files.items():
        if file in waiting and file not in in_every_run:
            reason = f"its file is long and waits for a later run (passed on {waiting[file][:10]})"
            item.add_marker(pytest.mark.skip(reason=reason))
