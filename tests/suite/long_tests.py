"""Long tests take turns in `make test`. The rule is in docs/testing.md. PURE, but for `digests`, `recorded` and `keep`.

What is known of earlier runs is kept in the cache of the machine only, so that on a new machine all tests run.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from e2e import turns
from e2e.cluster.paths import cache
from e2e.turns import MARGIN, Candidate, Passed

LONG_SECONDS = 10.0
TURNS = 3
VARIABLE = "LONG_TESTS_THAT_WAIT"  # path of a JSON file with the result of `waiting`; conftest.py reads it
Records = Mapping[str, Passed]  # by the name of the test


def digests(root: Path) -> dict[str, str]:
    """Digests of the files of tests, by their path below `root`."""
    files = [file for folder in ("tests", "e2e") for file in (root / folder).rglob("test_*.py")]
    return {file.relative_to(root).as_posix(): turns.digest([file], root) for file in files}


def waiting(records: Records, files: Mapping[str, str]) -> dict[str, str]:
    """Long tests that do not run now, with the time at which each passed last.

    A test whose file has changed since then runs. Of the others, those run that passed longest ago, for the `TURNS`th
    part of the time that all take.

    Args:
        records: of the long tests, when each passed last.
        files: digests of the files as they are now.
    """
    known = {name: record for name, record in records.items() if _file(name) in files}
    now = {name: files[_file(name)] for name in known}
    candidates = [Candidate(name, now[name], now[name] != record.digest) for name, record in known.items()]
    seconds = [record.seconds for record in known.values()]
    chosen = turns.choose(candidates, known, MARGIN * max(sum(seconds) / TURNS, *seconds, 0))
    return {name: record.at for name, record in known.items() if name not in chosen}


def updated(records: Records, passed: Records, failed: Set[str], files: Mapping[str, str]) -> dict[str, Passed]:
    """The records after a run. One that failed has none until it passes; `passed` has also tests that are not long."""
    found = {
        name: replace(record, digest=files[_file(name)]) for name, record in passed.items() if _file(name) in files
    }
    newest = turns.newest(records, found)
    return {name: newest[name] for name in newest.keys() - failed if newest[name].seconds >= LONG_SECONDS}


def recorded() -> dict[str, Passed]:
    """What this machine knows."""
    return turns.read(_kept())


def keep(records: Records) -> None:
    """Let later runs on this machine know."""
    turns.write(records, _kept())


def _file(name: str) -> str:
    return name.partition("::")[0]


def _kept() -> Path:
    return cache() / "long_tests.json"
