"""The table of failure modes, the code and the tests agree.

Every name in it exists in the code, and every row names tests that inject its fault. The page of troubleshooting has
all reasons (test_troubleshooting.py).
"""

import ast
import re
from pathlib import Path

import pytest

from omni_operator import metrics, settings
from omni_operator.api.status import CONDITION_TYPES

PAGE = "docs/contribute/evidence.md"
TITLE = "\n## Budgets of the operator\n"  # of the section after the failure modes
COLUMNS = ["Fault", "What happens", "How it shows", "Tests"]
CODE = re.compile(r"`([^`]+)`")


def rows(text: str) -> list[list[str]]:
    """Cells of every row of the page's tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row != COLUMNS and not set("".join(row)) <= {"-", ":", " "}]


def words_of_code(root: Path) -> set[str]:
    """All string constants of the operator."""
    words = set()
    for path in (root / "operator" / "omni_operator").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    return words


def find_tests(root: Path) -> set[str]:
    """Names of all tests of the operator, on clusters and of the training program."""
    folders = [root / "tests" / "control", root / "e2e" / "suites", root / "tests" / "ml" / "trainer"]
    text = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("test_*.py"))
    return set(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    page, title, _ = (root / PAGE).read_text(encoding="utf-8").partition(TITLE)
    assert title
    return page


def test_every_row_is_complete_and_names_existing_tests(root: Path, text: str) -> None:
    known = find_tests(root)
    table = rows(text)
    assert len(table) > 25
    for row in table:
        assert len(row) == len(COLUMNS) and all(row), row
        tests = CODE.findall(row[-1])
        assert tests, f"{row[0]}: no test injects this fault"
        assert set(tests) <= known, f"{row[0]}: no such test: {sorted(set(tests) - known)}"


def test_every_test_that_the_page_names_exists(root: Path) -> None:
    """Also the tests of numeric faults and of bit-identical runs, below the failure modes."""
    folders = [root / "tests", root / "e2e" / "suites"]
    code = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("test_*.py"))
    known = set(re.findall(r"^(?:async )?def (test_\w+)", code, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", (root / PAGE).read_text(encoding="utf-8").partition(TITLE)[2]))
    assert len(named) > 15 and named - known == set()


def test_every_name_on_the_page_exists(root: Path, text: str) -> None:
    shown = {name for row in rows(text) for cell in row[1:3] for name in CODE.findall(cell)}
    words = {*words_of_code(root), *CONDITION_TYPES}
    source = Path(metrics.__file__).read_text(encoding="utf-8")
    known_settings = set(settings._READERS)
    for name in shown:
        if name.startswith("diffusionrl_"):
            bare = re.sub(r"^diffusionrl_(operator_|job_)?|_total$|\{.*\}$", "", name.partition("{")[0])
            assert f'"{bare}"' in source or f"_{bare}" in source, f"no metric {name}"
        elif re.fullmatch(r"[A-Z]+(_[A-Z]+)+", name):
            assert name in known_settings, f"no setting {name}"
        elif re.fullmatch(r"[A-Z][A-Za-z]+(=[A-Z][a-z]+)?", name):
            assert name.partition("=")[0] in words, f"the operator never says {name}"


def test_a_row_is_found() -> None:
    page = "|" + "|".join(COLUMNS) + "|\n|---|---|---|---|\n| a | b | `Ready` | `test_x` |\n"
    assert rows(page) == [["a", "b", "`Ready`", "`test_x`"]]
