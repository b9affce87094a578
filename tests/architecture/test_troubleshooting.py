"""Every condition and reason of the code is explained, and every explanation belongs to one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from architecture.reasons import reasons_of_conditions, warnings_of_the_trainer
from omni_operator.api.status import CONDITION_TYPES, RECONCILE_ERROR
from omni_operator.cli.main import app
from omni_operator.status.observed.evidence import SIDECAR
from omni_operator.status.observed.trainer_report import OTHER_WARNING, WARNING_REASONS
from omni_operator.status.reasons.explained_reasons import FAILURES, REASONS, WAITING, WARNINGS
from omni_operator.status.reasons.explanations import CONDITIONS
from omni_operator.status.reasons.names import EventReason, FailureReason
from omni_operator.status.reasons.normal_reasons import NORMAL
from omni_operator.status.report.events import _TROUBLES, _WARNINGS
from tools import troubleshooting_page

PAGE = "docs/troubleshooting.md"
FAILED = {reason.value for reason in FailureReason}
EVENTS = {reason.value for reason in EventReason}


def test_every_reason_is_explained_and_nothing_else(root: Path) -> None:
    reasons = {*reasons_of_conditions(root), *FAILED, *EVENTS, *WARNING_REASONS, OTHER_WARNING}
    assert len(reasons) > 70
    assert reasons - set(REASONS) == set(), "reasons without an explanation"
    assert set(REASONS) - reasons == set(), "explanations of reasons that the code does not give"
    assert len(REASONS) == sum(len(group) for group in (WAITING, FAILURES, WARNINGS, NORMAL)), "a reason in two groups"


def test_every_condition_is_explained_and_nothing_else() -> None:
    assert set(CONDITIONS) == {*CONDITION_TYPES, RECONCILE_ERROR}


def test_the_operator_has_a_reason_for_every_warning_of_the_trainer(root: Path) -> None:
    assert warnings_of_the_trainer(root) == WARNING_REASONS


def test_the_page_of_the_run_folder_has_every_warning(root: Path) -> None:
    page = (root / "docs" / "run-folder.md").read_text(encoding="utf-8")
    table = page.partition("| reason of a warning |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == WARNING_REASONS


def test_an_explanation_names_the_places_where_its_reason_appears(root: Path) -> None:
    statuses = reasons_of_conditions(root)
    for name, found in REASONS.items():
        conditions = [place.split("=") for place in found.shown if "=" in place]
        assert {kind for kind, _ in conditions} <= set(CONDITIONS), name
        assert {*(place for place in found.shown if "=" not in place)} <= set(troubleshooting_page.PLACES), name
        shown = {status for _, status in conditions}
        expected = statuses.get(name, set()) | ({"True"} if name in FAILED - {"ChildDeleted"} else set())
        if name != RECONCILE_ERROR:  # written separately from the conditions
            assert shown >= expected, f"{name}: a condition has it with status {expected - shown}"
        assert ("failure" in found.shown) == (name in FAILED), name
        assert ("event" in found.shown) == (name in EVENTS), name
        assert ("warning" in found.shown) == (name in {*WARNING_REASONS, OTHER_WARNING, SIDECAR}), name
    assert set(_TROUBLES) | set(_WARNINGS) <= set(REASONS)


def test_what_holds_a_job_has_a_command_and_a_remedy() -> None:
    for name, found in REASONS.items():
        held = name not in NORMAL
        assert bool(found.look) == bool(found.action) == held, name
        assert found.meaning.endswith(".") and (not held or found.action.endswith(".")), name


def test_the_page_is_up_to_date(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert troubleshooting_page.main(["--check", "--out", str(root / PAGE)]) == 0
    stale = tmp_path / "page.md"
    stale.write_text("old")
    assert troubleshooting_page.main(["--check", "--out", str(stale)]) == 1
    assert "make crds" in capsys.readouterr().err


def test_every_reason_that_holds_a_job_has_a_heading_of_its_own(root: Path) -> None:
    headings = re.findall(r"^### (\w+)$", (root / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == {*WAITING, *FAILURES, *WARNINGS}
    assert len(headings) == len(set(headings)), "an anchor must be unique"


def test_messages_of_a_run_on_one_machine_are_in_the_code(root: Path) -> None:
    page = Path(troubleshooting_page.__file__)
    paths = [path for name in ("operator", "verl_omni") for path in (root / name).rglob("*.py") if path != page]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    assert [message for message in troubleshooting_page.MESSAGES if message not in code] == []


def test_commands_of_drl_on_the_page_exist(root: Path) -> None:
    text = (root / PAGE).read_text(encoding="utf-8")
    commands = set(re.findall(r"\bdrl ([a-z]+) (?=NAME|JOB)", text))
    assert {"why", "validate"} <= commands
    for command in commands - {"get"}:  # kubectl get drl NAME
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command
