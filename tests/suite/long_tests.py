"""Long files of tests take turns in `make test` and `.ci/run` (docs/contribute/testing.md).

PURE, but for `digests` and the last two.

Whole files, because tests of a file may share an engine, and the later ones what the earlier ones did with it. The
machine's cache keeps when each file passed. On a new machine `make test` runs all, and `.ci/run` reads the repository's
file, because a new machine has less time for tests.
"""

from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path

from e2e import turns
from e2e.cluster.paths import cache
from e2e.turns import MARGIN, Candidate, Passed

LONG_SECONDS = 30.0
TURNS = 3  # runs of `make test` that have all of them
TURNS_OF_CI = 2
FOLDER = "tests"  # those in e2e share a control plane
VARIABLE = "LONG_TESTS_THAT_WAIT"  # path of a JSON file with the result of `waiting`; conftest.py reads it
COMMITTED = Path(__file__).with_suffix(".json")  # written by `make test-times`
Records = Mapping[str, Passed]  # by the path of a file below the root


def digests(root: Path) -> dict[str, str]:
    """Digests of the files of tests, by their path below `root`."""
    files = (root / FOLDER).rglob("test_*.py")
    return {file.relative_to(root).as_posix(): turns.digest([file], root) for file in files}


def waiting(records: Records, files: Mapping[str, str], number: int) -> dict[str, str]:
    """Long files that do not run now, with the time at which each passed last.

    A file that has changed since then runs. Of the others, those run that passed longest ago, for one part in
    `number` of the time that all take.

    Args:
        records: of the long files, when each passed last.
        files: digests of all files as they are now.
        number: runs in which each has its turn.
    """
    known = {name: record for name, record in records.items() if name in files}
    candidates = [Candidate(name, files[name], files[name] != record.digest) for name, record in known.items()]
    seconds = [record.seconds for record in known.values()]
    chosen = turns.choose(candidates, known, MARGIN * max(sum(seconds) / number, *seconds, 0))
    return {name: record.at for name, record in known.items() if name not in chosen}


def updated(records: Records, passed: Records, failed: Set[str], files: Mapping[str, str]) -> dict[str, Passed]:
    """The records after a run: a file has one if it is long and no test of it failed.

    Args:
        passed: of each test that passed, when and for how long, by its name. failed: names of those that did not.
    """
    by_file: defaultdict[str, list[Passed]] = defaultdict(list)
    for name, record in passed.items():
        by_file[_file(name)].append(record)
    lately = {
        file: Passed(sum(test.seconds for test in tests), max(test.at for test in tests), files[file])
        for file, tests in by_file.items()
        if file in files
    }
    newest = turns.newest(records, lately)
    wrong = {_file(name) for name in failed}
    return {file: newest[file] for file in newest.keys() - wrong if newest[file].seconds >= LONG_SECONDS}


def recorded(committed: bool = False) -> dict[str, Passed]:
    """What this machine knows, and also what the repository knows."""
    return turns.newest(turns.read(COMMITTED) if committed else {}, turns.read(_kept()))


def keep(records: Records) -> None:
    """Let later runs on this machine know."""
    turns.write(records, _kept())


def _file(name: str) -> str:
    return name.partition("::")[0]


def _kept() -> Path:
    return cache() / "long_tests.json"
