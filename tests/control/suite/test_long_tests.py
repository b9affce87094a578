"""Which long tests of `make test` wait for a later run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.turns import Passed
from suite.long_tests import LONG_SECONDS, TURNS, VARIABLE, digests, updated, waiting

ROOT = Path(__file__).resolve().parents[3]
LONG_AGO, LATELY = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
FILES = {"tests/test_a.py": "a", "tests/test_b.py": "b"}


def name(number: int) -> str:
    return f"tests/test_a.py::test_{number}"


def test_on_a_machine_without_records_nothing_waits() -> None:
    assert waiting({}, FILES) == {}


def test_a_third_of_the_time_goes_to_those_that_passed_longest_ago() -> None:
    records = {name(number): Passed(20, f"2026-01-0{number + 1}", "a") for number in range(6)}
    assert waiting(records, FILES) == {name(number): f"2026-01-0{number + 1}" for number in range(2, 6)}


def test_one_whose_file_has_changed_does_not_wait() -> None:
    records = {name(number): Passed(20, f"2026-01-0{number + 1}", "a") for number in range(6)}
    changed = {name(5): Passed(20, LATELY, "another"), name(4): Passed(20, LATELY, "another")}
    assert waiting(records | changed, FILES).keys() == {name(number) for number in range(4)}


def test_one_whose_file_is_gone_takes_no_time() -> None:
    records = {name(0): Passed(20, LATELY, "a"), "tests/test_gone.py::test": Passed(1000, LONG_AGO, "a")}
    assert waiting(records, FILES) == {}


@given(st.lists(st.integers(10, 300), min_size=1, max_size=15))
def test_each_has_its_turn(seconds: list[int]) -> None:
    records = {name(number): Passed(took, LONG_AGO, "a") for number, took in enumerate(seconds)}
    ran = set[str]()
    for run in range(2 * TURNS):
        now = records.keys() - waiting(records, FILES).keys()
        took = sum(records[each].seconds for each in now)
        assert took <= max(sum(seconds) / TURNS, *seconds) * 1.000001
        passed = {each: Passed(records[each].seconds, f"2026-02-{run + 1:02}", "") for each in now}
        records, ran = updated(records, passed, set(), FILES), ran | now
    assert ran == records.keys()


def test_what_passed_is_recorded_with_its_file_and_what_failed_or_is_no_longer_long_is_forgotten() -> None:
    records = {name(number): Passed(30, LONG_AGO, "a") for number in range(3)}
    passed = {name(0): Passed(LONG_SECONDS - 1, LATELY, ""), "tests/test_b.py::test": Passed(12, LATELY, "")}
    assert updated(records, passed, {name(2)}, FILES) == {
        name(1): Passed(30, LONG_AGO, "a"), "tests/test_b.py::test": Passed(12, LATELY, "b"),
    }  # fmt: skip


def test_the_files_are_those_of_the_suite() -> None:
    own = Path(__file__).relative_to(ROOT).as_posix()
    assert {own, "e2e/suites/test_operator.py", "tests/ml/engine/test_whole_job.py"} <= digests(ROOT).keys()


@pytest.mark.slow
def test_a_test_that_waits_is_skipped_with_the_reason_and_one_of_every_run_is_not(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "import pytest\ndef test_long(): pass\n@pytest.mark.every_run\ndef test_core(): pass\ndef test_short(): pass\n"
    )
    waits = {f"test_some.py::{each}": LONG_AGO for each in ("test_long", "test_core")}
    (tmp_path / "waits.json").write_text(json.dumps(waits))
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)],
        check=False, cwd=tmp_path, env={**os.environ, VARIABLE: str(tmp_path / "waits.json")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "2 passed, 1 skipped" in said.stdout, said.stdout + said.stderr
    assert "it is long and waits for a later run (passed on 2026-01-01)" in said.stdout
