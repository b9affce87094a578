"""Which tests on whole clusters run when there is not time for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.turns import COMMITTED, MARGIN, UNKNOWN_SECONDS, Candidate, Passed, choose, digest, newest, read
from suite.timings import elsewhere, failed_of, on_clusters, passed_of

ROOT = Path(__file__).resolve().parents[3]
LONG_AGO = "2026-01-01T00:00:00+00:00"
LATELY = "2026-02-01T00:00:00+00:00"


def passed(at: str, seconds: float = 100, digest: str = "same") -> Passed:
    return Passed(seconds, at, digest)


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        (passed(LATELY), "old"),
        (passed(LATELY, digest="changed since"), "other"),
        (passed("2025-01-01T00:00:00+00:00", seconds=500), "old"),  # too long: gives its place to a shorter one
    ],
    ids=["passed lately", "changed", "too long"],
)
def test_of_two_that_do_not_both_fit_the_one_that_passed_longest_ago_runs(other: Passed, chosen: str) -> None:
    records = {"other": other, "old": passed(LONG_AGO)}
    assert choose([Candidate("other", "same"), Candidate("old", "same")], records, 150) == {chosen}


def test_one_that_never_passed_runs_first() -> None:
    candidates = [Candidate("old", "same"), Candidate("never", "same")]
    assert choose(candidates, {"old": passed(LONG_AGO)}, UNKNOWN_SECONDS * MARGIN) == {"never"}


def test_without_time_those_of_every_run_are_left() -> None:
    candidates = [Candidate("core", "same", every_run=True), Candidate("other", "same")]
    assert choose(candidates, {}, -60) == {"core"}


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=12), st.floats(0, 3000))
def test_within_a_budget_that_is_kept_every_test_has_its_turn(seconds: list[float], spare: float) -> None:
    names = [f"test_{number}" for number in range(len(seconds))]
    records = {
        name: passed(f"2026-01-{day + 1:02}", took) for day, (name, took) in enumerate(zip(names, seconds, strict=True))
    }
    budget = max(seconds) * MARGIN + spare
    ran = set[str]()
    for day in range(len(names)):
        chosen = choose([Candidate(name, "same") for name in names], records, budget)
        assert sum(records[name].seconds for name in chosen) * MARGIN <= budget * 1.000001
        records |= {name: passed(f"2026-02-{day + 1:02}", records[name].seconds) for name in chosen}
        ran |= chosen
    assert ran == set(names)


def test_a_digest_changes_with_the_content_and_the_name_of_a_file_and_with_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    file = tmp_path / "folder" / "file"
    folder.mkdir()
    file.write_text("one")
    before = digest([folder], tmp_path)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "file.pyc").write_text("anything")
    assert digest([folder, file], tmp_path) == before
    file.write_text("two")
    changed = digest([folder], tmp_path)
    file.rename(folder / "other")
    assert len({before, changed, digest([folder], tmp_path)}) == 3


def test_of_two_records_the_later_one_counts() -> None:
    left = {"a": passed(LATELY), "b": passed(LONG_AGO)}
    right = {"a": passed(LONG_AGO), "c": passed(LONG_AGO)}
    assert (
        newest(left, right)
        == newest(right, left)
        == {"a": passed(LATELY), "b": passed(LONG_AGO), "c": passed(LONG_AGO)}
    )


def test_the_records_are_of_tests_that_exist() -> None:
    gone = [
        name
        for name in read(COMMITTED)
        if f"def {name.partition('::')[2].partition('[')[0]}("
        not in (ROOT / name.partition("::")[0]).read_text(encoding="utf-8")
    ]
    assert not gone, "remove them from e2e/turns.json"


REPORT = """<testsuites><testsuite timestamp="2026-02-01T02:00:00+02:00">
<testcase classname="e2e.suites.test_a" name="test_passed" time="12.4"><properties><property name="digest" value="d"/>
</properties></testcase>
<testcase classname="e2e.suites.test_a" name="test_failed" time="1"><properties><property name="digest" value="d"/>
</properties><failure message="no">no</failure></testcase>
<testcase classname="e2e.suites.test_a" name="test_left_out" time="0"><properties><property name="digest" value="d"/>
</properties><skipped message="no time">no time</skipped></testcase>
<testcase classname="tests.test_b" name="test_on_no_cluster" time="1"/></testsuite></testsuites>"""


def test_only_tests_on_whole_clusters_that_passed_get_a_record() -> None:
    assert on_clusters(passed_of(REPORT)) == {"e2e/suites/test_a.py::test_passed": Passed(12, LATELY, "d")}
    assert elsewhere(passed_of(REPORT)).keys() == {"tests/test_b.py::test_on_no_cluster"}
    assert failed_of(REPORT) == {"e2e/suites/test_a.py::test_failed"}


@pytest.mark.slow
def test_a_test_without_a_turn_is_skipped_with_the_reason() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "bare", "e2e/suites/test_kueue.py", "-k", "preempted"]
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TESTS_END_BY": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "1 skipped" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "no time left; it has its turn in a later run" in done.stdout
