"""The Python API: everything exported is described, and every error that the client's docstrings name is exported."""

import builtins
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from omni_operator import api, client
from verl_omni import extensions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"
RAISES = re.compile(r"Raises:\n((?: +.*\n?)+)")


@pytest.mark.parametrize("module", [client, api, extensions])
def test_every_exported_class_and_function_is_described(module: ModuleType) -> None:
    assert f"::: {module.__name__}\n" in PAGE.read_text()
    exported = {name: getattr(module, name) for name in module.__all__}
    assert [name for name, value in exported.items() if callable(value) and not inspect.getdoc(value)] == []


def test_every_exported_name_of_the_format_of_jobs_is_on_the_page() -> None:
    part = PAGE.read_text().partition("::: omni_operator.api\n")[2].partition("\n## ")[0]
    (members,) = re.findall(r"members: \[(.*)\]", part)
    assert sorted([*members.split(", "), *re.findall(r"^::: omni_operator\.api\.(\w+)", part, re.MULTILINE)]) == sorted(
        api.__all__
    )


def test_every_error_that_a_docstring_of_the_client_names_can_be_imported_from_it() -> None:
    exported = [getattr(client, name) for name in client.__all__]
    members = [member for value in exported if inspect.isclass(value) for member in vars(value).values()]
    described = [getattr(value, "__func__", value) for value in (*exported, *members)]
    texts = [inspect.getdoc(value) or "" for value in described if inspect.isclass(value) or inspect.isroutine(value)]
    lists = [block for text in texts for block in RAISES.findall(text)]
    named = {name for text in lists for name in re.findall(r"^ {4}(\w+):", text, re.MULTILINE)}
    assert len(named) > 8
    assert [name for name in sorted(named) if not hasattr(builtins, name) and name not in client.__all__] == []
