"""Committed text is portable, without an address of a package index or a path of a machine, and has short lines."""

import re
import tomllib
from pathlib import Path

# Split, so that this file does not match itself.
INDEX = re.compile("|".join(("files" + r"\.pythonhosted", "pypi" + r"\.org", r"--(?:extra-)?index" + "-url")))
MACHINE = re.compile(r"(?<![\w.$}])/(?:" + "|".join(("work", "root", "home")) + r")/[\w.]")
ALLOWED_MACHINE: dict[str, str] = {}


def test_locks_name_no_address(root: Path) -> None:
    for path in sorted((root / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text, path.name
        pinned = re.findall(r"^[A-Za-z0-9][^\s;\\]*", text, re.MULTILINE)
        assert pinned, path.name
        assert all("==" in line for line in pinned), path.name
        assert text.count("--hash=sha256:") >= len(pinned), path.name


def test_no_text_names_a_package_index(texts: dict[str, str]) -> None:
    assert {name: index[0] for name, text in texts.items() if (index := INDEX.search(text))} == {}


def test_no_text_names_a_path_of_a_machine(texts: dict[str, str]) -> None:
    paths = {name: match[0] for name, text in texts.items() if (match := MACHINE.search(text))}
    assert {name: match for name, match in paths.items() if name not in ALLOWED_MACHINE} == {}


def test_documents_that_the_product_names_exist(root: Path, texts: dict[str, str]) -> None:
    product = {name: text for name, text in texts.items() if name.startswith(("verl_omni/", "operator/", "charts/"))}
    named = {(name, path) for name, text in product.items() for path in re.findall(r"\bdocs/[\w/-]+\.\w+", text)}
    assert len(named) > 20 and {(name, path) for name, path in named if not (root / path).exists()} == set()


def test_every_ignored_rule_has_its_reason(root: Path) -> None:
    """In `[tool.ruff.lint]`, an ignored rule has its own line with a comment."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    ignored = tomllib.loads(text)["tool"]["ruff"]["lint"]["ignore"]
    for rule in ignored:
        assert re.search(rf'^\s*"{rule}",\s+# \S+ \S+', text, re.MULTILINE), rule


def test_lines_of_changelog_fragments_are_as_long_as_those_of_code(root: Path) -> None:
    fragments = {path.name: path.read_text(encoding="utf-8") for path in (root / "changelog.d").glob("*.md")}
    assert {name for name, text in fragments.items() if max(map(len, text.splitlines()), default=0) > 120} == set()
