"""Which long files of tests wait for a later run of `make test`."""

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
LONG_AGO = "2026-01-01T00:00:00+00:00"
LATELY = "2026-02-01T00:00:00+00:00"


def name(number: int) -> str:
    return f"tests/test_{number}.py"


FILES = {name(number): "same" for number in range(20)}


def records_of(count: int) -> dict[str, Passed]:
    """Records of files that passed one after the other."""
    return {name(number): Passed(40, f"2026-01-{number + 1:02}", "same") for number in range(count)}


def test_a_third_of_the_time_goes_to_those_that_passed_longest_ago() -> None:
    assert waiting(records_of(6), FILES, TURNS) == {name(number): f"2026-01-{number + 1:02}" for number in range(2, 6)}


def test_one_that_has_changed_does_not_wait() -> None:
    changed = {name(number): Passed(40, LATELY, "another") for number in (4, 5)}
    assert waiting(records_of(6) | changed, FILES, TURNS).keys() == {name(number) for number in range(4)}


def test_one_that_is_gone_takes_no_time() -> None:
    records = {name(0): Passed(40, LATELY, "same"), "tests/test_gone.py": Passed(1000, LONG_AGO, "a")}
    assert waiting(records, FILES, TURNS) == {}


@given(st.lists(st.integers(30, 300), min_size=1, max_size=15))
def test_each_has_its_turn(seconds: list[int]) -> None:
    records = {name(number): Passed(took, LONG_AGO, "same") for number, took in enumerate(seconds)}
    ran = set[str]()
    for run in range(2 * TURNS):
        now = records.keys() - waiting(records, FILES, TURNS).keys()
        took = sum(records[file].seconds for file in now)
        assert took <= max(sum(seconds) / TURNS, *seconds) * 1.000001
        passed = {f"{file}::test": Passed(records[file].seconds, f"2026-02-{run + 1:02}", "") for file in now}
        records = updated(records, passed, set(), FILES)
        ran = ran | now
    assert ran == records.keys()


def test_a_long_file_is_recorded_when_all_of_it_passed() -> None:
    records = {name(number): Passed(40, LONG_AGO, "before") for number in range(3)}
    passed = {
        f"{name(0)}::test_now_short": Passed(LONG_SECONDS - 1, LATELY, ""),
        f"{name(2)}::test_passed": Passed(40, LATELY, ""),
        f"{name(3)}::test_one": Passed(20, LONG_AGO, ""),
        f"{name(3)}::test_other": Passed(15, LATELY, ""),
        "e2e/suites/test_operator.py::test": Passed(90, LATELY, ""),
    }
    assert updated(records, passed, {f"{name(2)}::test_failed"}, FILES) == {
        name(1): Passed(40, LONG_AGO, "before"),
        name(3): Passed(35, LATELY, "same"),
    }


def test_the_files_are_those_that_share_no_control_plane() -> None:
    files = digests(ROOT).keys()
    assert {Path(__file__).relative_to(ROOT).as_posix(), "tests/ml/engine/runs/test_whole_job.py"} <= files
    assert not [file for file in files if file.startswith("e2e/")]


@pytest.mark.slow
def test_a_file_that_waits_is_skipped_with_the_reason_and_one_of_every_run_is_not(tmp_path: Path) -> None:
    long = "def test_one(): pass\ndef test_two(): pass\n"
    core = "import pytest\n@pytest.mark.every_run\n"
    for stem, text in (("long", long), ("core", core + long), ("short", long)):
        (tmp_path / f"test_{stem}.py").write_text(text)
    (tmp_path / "waits.json").write_text(json.dumps({"test_long.py": LONG_AGO, "test_core.py": LONG_AGO}))
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)],
        check=False,
        cwd=tmp_path,
        env={**os.environ, VARIABLE: str(tmp_path / "waits.json")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "4 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "its file is long and waits for a later run (passed on 2026-01-01)" in done.stdout
