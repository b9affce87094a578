"""The reference of the Python API: everything that is exported, and every error that a docstring names."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator

import pytest

from omni_operator import client
from tools import python_page


@pytest.fixture(scope="module")
def page() -> str:
    return python_page.text()


def sections(page: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        yield part.partition("\n")[0], part


def test_every_exported_name_is_described_once(page: str) -> None:
    names = [name for name, _ in sections(page)]
    exported = [name for module, _ in python_page.MODULES for name in module.__all__]
    constants = re.findall(r"^`(\w+)` is `|, `(\w+)` is `", page, re.MULTILINE)
    assert sorted([*names, *(first or second for first, second in constants)]) == sorted(exported)
    assert [name for name, text in sections(page) if len(text.partition("\n")[2].split()) < 4] == []


def test_every_error_that_a_docstring_of_the_client_names_can_be_imported_from_it(page: str) -> None:
    part = page.partition("## omni_operator.api")[0]
    lists = re.findall(r"\*Raises\*\n\n((?:- .*\n(?:  .*\n)*)+)", part)
    named = {name for text in lists for name in re.findall(r"^- `(\w+)`", text, re.MULTILINE)}
    assert len(named) > 8
    assert [name for name in sorted(named) if not hasattr(builtins, name) and name not in client.__all__] == []


def test_the_page_is_the_same_each_time_and_shows_no_address(page: str) -> None:
    assert page == python_page.text()
    assert " at 0x" not in page and "<function" not in page and "<class" not in page
    assert "register_loss(name: str, *, like: str = 'flow_grpo')" in page


def test_a_docstring_becomes_paragraphs_and_lists() -> None:
    docstring = "A job.\n\nArgs:\n    name: of the job,\n        and more.\n\nRaises:\n    ValueError: it is wrong."
    assert "".join(python_page.markdown(docstring)) == (
        "A job.\n\n*Args*\n\n- `name`: of the job,\n  and more.\n\n*Raises*\n\n- `ValueError`: it is wrong.\n"
    )
