"""Durations of stages and tests, and their table in docs/contribute/testing.md. PURE, but for `read` and `passed`."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from e2e.turns import Passed

SLOWEST = 5
LONG_STAGE = 60.0  # seconds; the table counts the others
BEGIN = "<!-- durations: written by `make test-times` -->"
END = "<!-- end of durations -->"


@dataclass(frozen=True, slots=True)
class StageTime:
    """How long a stage took, and the last line that it printed."""

    name: str
    seconds: float
    succeeded: bool
    said: str

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class TestTime:
    """How long a test took, with its fixtures."""

    __test__ = False

    name: str
    seconds: float


def tests_of(report: str) -> list[TestTime]:
    """The tests of a JUnit report."""
    return [_time_of(case) for case in ET.fromstring(report).iter("testcase")]


def _time_of(case: ET.Element) -> TestTime:
    name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
    return TestTime(name, float(case.get("time", "0")))


def passed_of(report: str) -> dict[str, Passed]:
    """The tests of a JUnit report that passed; a digest have those on whole clusters (e2e/conftest.py)."""
    passed = {}
    for suite in ET.fromstring(report).iter("testsuite"):
        at = datetime.fromisoformat(suite.get("timestamp", "")).astimezone(UTC).isoformat(timespec="seconds")
        for case in suite.iter("testcase"):
            digest = case.find("properties/property[@name='digest']")
            if not {"failure", "error", "skipped"} & {part.tag for part in case}:
                test = _time_of(case)
                known = "" if digest is None else digest.get("value", "")
                passed[test.name] = Passed(round(test.seconds), at, known)
    return passed


def passed(folder: Path) -> dict[str, Passed]:
    """The tests that passed in the last runs, which left their reports in a folder."""
    reports = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.xml"))]
    return {name: record for report in reports for name, record in passed_of(report).items()}


def failed_of(report: str) -> set[str]:
    """The tests of a JUnit report that failed."""
    cases = ET.fromstring(report).iter("testcase")
    return {_time_of(case).name for case in cases if {"failure", "error"} & {part.tag for part in case}}


def failed(folder: Path) -> set[str]:
    """The tests that failed in the last runs, which left their reports in a folder."""
    return {name for path in folder.glob("*.xml") for name in failed_of(path.read_text(encoding="utf-8"))}


def on_clusters(records: Mapping[str, Passed]) -> dict[str, Passed]:
    """Records of tests on whole clusters."""
    return {name: record for name, record in records.items() if record.digest}


def elsewhere(records: Mapping[str, Passed]) -> dict[str, Passed]:
    """Records of all other tests."""
    return {name: record for name, record in records.items() if not record.digest}


def read(folder: Path) -> tuple[list[StageTime], list[TestTime]]:
    """What the last runs left in a folder: the latest duration of each stage, in the order in which they ended."""
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    stages = [StageTime(**json.loads(path.read_text(encoding="utf-8"))) for path in files]
    tests = [test for path in sorted(folder.glob("*.xml")) for test in tests_of(path.read_text(encoding="utf-8"))]
    return stages, tests


def slowest(tests: Iterable[TestTime]) -> list[TestTime]:
    """The tests that took longest, the longest first."""
    return sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]


def table(machine: str, stages: Sequence[StageTime], tests: Sequence[TestTime]) -> str:
    """The durations in Markdown."""
    long = [stage for stage in stages if stage.seconds >= LONG_STAGE]
    shorter = sum(stage.seconds for stage in stages) - sum(stage.seconds for stage in long)
    rows = [f"| {stage.name} | {stage.seconds:.0f} | {_counts(stage.said)} |" for stage in long]
    rows.append(f"| {len(stages) - len(long)} shorter stages together | {shorter:.0f} |  |")
    tops = [f"| `{test.name}` | {test.seconds:.0f} |" for test in slowest(tests)]
    return "\n".join(
        [
            f"Measured on a machine with {machine}. Stages of different lanes overlap.",
            "",
            "| stage | seconds | result |",
            "| --- | ---: | --- |",
            *rows,
            "",
            f"The {len(tops)} slowest tests, each with the fixtures that it was the first to use:",
            "",
            "| test | seconds |",
            "| --- | ---: |",
            *tops,
        ]
    )


def _counts(said: str) -> str:
    """How many tests passed, failed and were skipped, from the last line of pytest's output."""
    parts = said.partition(" in ")[0].split(", ")
    return ", ".join(part for part in parts if not re.search("warning|deselected", part))


def replaced(page: str, content: str) -> str:
    """A page with other durations between its two markers.

    Raises:
        ValueError: the page lacks a marker.
    """
    before, marker, table = page.partition(BEGIN)
    _, closed, after = table.partition(END)
    if not marker or not closed:
        raise ValueError(f"the page has no place for durations: it needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"
