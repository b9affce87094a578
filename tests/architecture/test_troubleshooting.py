"""Every condition and reason of the code is explained, and every explanation belongs to one."""

import re
from pathlib import Path
from typing import get_args

from typer.testing import CliRunner

from architecture.reasons import given_reasons, operator_strings, warnings_of_the_trainer
from omni_operator.api.spec.policy import FailureReason
from omni_operator.api.status import CONDITION_TYPES, RECONCILE_ERROR
from omni_operator.cli.main import app
from omni_operator.status.observed.evidence import SIDECAR
from omni_operator.status.observed.trainer_report import OTHER_WARNING, WARNING_REASONS
from omni_operator.status.reasons.problems import FAILURES, WAITING, WARNINGS
from omni_operator.status.reasons.table import CONDITIONS, NORMAL, REASONS, reasons_shown
from tools import troubleshooting_page

PAGE = "docs/operate/troubleshooting.md"


def test_the_table_has_every_reason_that_the_code_gives_and_no_other(root: Path) -> None:
    reasons = given_reasons(root)
    assert len(reasons) > 50
    assert reasons - set(REASONS) == set(), "reasons without a row"
    assert set(REASONS) - operator_strings(root) - warnings_of_the_trainer(root) == set(), "rows that no code gives"
    assert len(REASONS) == sum(len(group) for group in (WAITING, FAILURES, WARNINGS, NORMAL)), "a reason in two groups"


def test_the_failures_of_the_table_are_the_failures_that_a_policy_names() -> None:
    named = set(get_args(FailureReason))
    assert reasons_shown("failure") == named - {"Unknown"} | {"ChildDeleted"}
    assert set(FAILURES) <= reasons_shown("failure")


def test_every_condition_is_explained_and_nothing_else() -> None:
    assert set(CONDITIONS) == {*CONDITION_TYPES, RECONCILE_ERROR}


def test_the_table_has_every_warning_of_the_trainer(root: Path) -> None:
    assert warnings_of_the_trainer(root) == WARNING_REASONS - {OTHER_WARNING, SIDECAR}


def test_a_row_names_places_that_exist() -> None:
    conditions = {f"{kind}={status}" for kind in CONDITIONS for status in ("True", "False", "Unknown")}
    for name, reason in REASONS.items():
        assert reason.shown and set(reason.shown) <= {*conditions, *troubleshooting_page.PLACES}, name


def test_what_holds_a_job_has_a_command_and_a_remedy() -> None:
    for name, reason in REASONS.items():
        assert reason.normal == (name in NORMAL) and bool(reason.look) == bool(reason.action), name
        assert reason.meaning.endswith(".") and (reason.normal or reason.action.endswith(".")), name


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
