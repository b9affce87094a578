"""Which tests on whole clusters run when there is not time for all of them. The functions above `digest` are PURE.

The rule is in docs/contribute/testing.md. What is known of earlier runs is in two files `turns.json`: of this machine,
and of the repository, written by `make test-times`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.paths import cache

COMMITTED = Path(__file__).with_name("turns.json")
UNKNOWN_SECONDS = 300.0  # estimate for a test that has never passed: as long as most trainings in pods
MARGIN = 1.25  # over the recorded seconds: a machine is seldom as quiet as the one they are from


@dataclass(frozen=True, slots=True)
class Passed:
    """When a test passed last.

    Attributes:
        seconds: how long it took, with the fixtures that it was the first to use.
        at: the time in UTC, ISO 8601.
        digest: what the test consisted of then (`digest`).
    """

    seconds: float
    at: str
    digest: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A test that may run.

    Attributes:
        name: pytest's node id.
        digest: what it consists of now.
        every_run: it runs also when there is no time.
    """

    name: str
    digest: str
    every_run: bool = False


def choose(candidates: Sequence[Candidate], records: Mapping[str, Passed], seconds: float) -> set[str]:
    """Names of the tests to run within this many seconds.

    Tests of every run come first, then tests that changed since they last passed, then tests that passed longest ago.
    A test that needs more time than is left is skipped.
    """
    chosen = set[str]()
    left = seconds
    for candidate in sorted(candidates, key=lambda candidate: _rank(candidate, records)):
        record = records.get(candidate.name)
        needed = (record.seconds if record else UNKNOWN_SECONDS) * MARGIN
        if candidate.every_run or needed <= left:
            chosen.add(candidate.name)
            left -= needed
    return chosen


def _rank(candidate: Candidate, records: Mapping[str, Passed]) -> tuple[bool, bool, str]:
    record = records.get(candidate.name)
    changed = record is None or record.digest != candidate.digest
    return (not candidate.every_run, not changed, record.at if record else "")


def digest(paths: Iterable[Path], root: Path) -> str:
    """A digest of the names and contents of files, and of all files of folders."""
    files = {file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])}
    total = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts):
        total.update(f"{file.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def newest(*records: Mapping[str, Passed]) -> dict[str, Passed]:
    """The record of each test's last pass."""
    merged: dict[str, Passed] = {}
    for name, record in (item for some in records for item in some.items()):
        if name not in merged or merged[name].at <= record.at:
            merged[name] = record
    return merged


def read(path: Path) -> dict[str, Passed]:
    """The records in a file, by the name of the test; none where there is no file."""
    if not path.exists():
        return {}
    return {name: Passed(**record) for name, record in json.loads(path.read_text(encoding="utf-8")).items()}


def known() -> dict[str, Passed]:
    """What the repository and this machine know."""
    return newest(read(COMMITTED), read(cache() / COMMITTED.name))


def write(records: Mapping[str, Passed], path: Path) -> None:
    """Keep the records for the next run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: asdict(record) for name, record in sorted(records.items())}
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def keep(records: Mapping[str, Passed]) -> None:
    """Let later runs on this machine know of tests that passed."""
    write(newest(known(), records), cache() / COMMITTED.name)
