"""Pages for users: every job that they show is valid, every command of drl in them can be parsed, files exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.testing import CliRunner

from omni_operator.cli.main import app
from omni_operator.plan import ClusterSettings

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:kubectl )?drl [^`\n]+)`")
# What the admin of the cluster has to allow first, as the page says.
ALLOWED = {"networks.md": "podPolicy: {capabilities: [IPC_LOCK]}\n"}
UsageError: Any = typer.BadParameter.__base__
GENERATED = {"troubleshooting.md"}  # its commands are those of explained_reasons.py


def blocks(page: Path, language: str) -> list[str]:
    return [body for _, found, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def jobs() -> Iterator[Any]:
    for page in PAGES:
        shown = [text for text in blocks(page, "yaml") if "kind: DiffusionRLJob" in text]
        yield from (pytest.param(page, text, id=f"{page.name}-{place}") for place, text in enumerate(shown))


def lines() -> Iterator[Any]:
    """Commands of drl in shell blocks, which are whole, and in running text, where a command may be only named."""
    for page in PAGES:
        if page.name in GENERATED:
            continue
        text = page.read_text(encoding="utf-8")
        shell = [line.strip() for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
        found = [(line, True) for line in shell if re.match(r"(kubectl )?drl ", line)]
        found += [(line, False) for line in INLINE.findall(BLOCK.sub("", text)) if page.name != "cli.md"]
        for line, whole in dict.fromkeys(found):
            yield pytest.param(line, whole, id=f"{page.name}-{line}")


def test_the_settings_on_the_page_of_drl_have_the_port_of_the_chart() -> None:
    (text,) = (block for block in blocks(ROOT / "docs" / "cli.md", "yaml") if "reportUrl:" in block)
    values = YAML(typ="safe").load(ROOT / "charts" / "omni-operator" / "values.yaml")
    url = ClusterSettings.model_validate(YAML(typ="safe").load(text)).report_url
    assert str(url).rpartition(":")[2] == str(values["reports"]["port"])


def parse(arguments: list[str]) -> None:
    """Parse a command line as drl would, without running it.

    Raises:
        UsageError: there is no such command or option, or an argument is missing.
    """
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="drl")
    while hasattr(command, "commands"):
        name, command, arguments = command.resolve_command(context, arguments)
        context = typer.Context(command, info_name=name, parent=context)
    command.parse_args(context, arguments)


@pytest.mark.parametrize(("page", "text"), list(jobs()))
def test_a_job_in_the_docs_is_valid_on_a_cluster(page: Path, text: str, tmp_path: Path) -> None:
    job, settings = tmp_path / "job.yaml", tmp_path / "settings.yaml"
    job.write_text(text, encoding="utf-8")
    settings.write_text(f"image: i\n{ALLOWED.get(page.name, '')}", encoding="utf-8")
    arguments = ["validate", "--cluster", str(job)]
    result = CliRunner().invoke(app, [*arguments, "--settings", str(settings)])
    assert result.exit_code == 0, result.stderr
    if page.name != "README.md":  # whose job is the smallest
        assert result.stderr == ""
    if page.name in ALLOWED:
        assert "the cluster's admin decides" in CliRunner().invoke(app, [*arguments, "--image", "i"]).stderr


@pytest.mark.parametrize(("line", "whole"), list(lines()))
def test_a_command_in_the_docs_can_be_parsed(line: str, whole: bool) -> None:
    words = shlex.split(line.partition(" #")[0].partition(" > ")[0].replace("…", "").replace("...", ""))
    words = words[words.index("drl") + 1 :]
    if not words or words[0].isupper():
        return
    for word in words:
        if word.startswith("examples/") and "my-" not in word:  # those are files that the reader makes
            assert (ROOT / word).exists(), word
    try:
        parse(words)
    except typer.BadParameter:
        assert not whole


def test_a_misspelt_option_and_a_missing_argument_are_found() -> None:
    assert len(list(jobs())) > 8
    assert len(list(lines())) > 40
    for wrong in (["validate", "--clustr", "a.yaml"], ["fetch"], ["fecth", "a"]):
        with pytest.raises(UsageError):
            parse(wrong)
