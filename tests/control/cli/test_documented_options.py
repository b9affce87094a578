"""Options of helm and kubectl in the documents exist in the programs that tests use."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from control.cli.document_blocks import PAGES, Command, blocks, commands, split
from e2e.cluster.errors import ToolMissing
from e2e.cluster.tools import KUBE, ensure
from e2e.conftest import leave_out
from e2e.helm import HELM

OPTION = re.compile(r"^--?[a-z][a-z-]*")


def documented(program: str) -> Iterator[Command]:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh":
                yield from (command for command in commands(block) if command.words[0] == program)


def unknown_options(program: Path, command: Command) -> list[str]:
    known = _known(program, command.words[1], command.words[2] if command.words[1] == "create" else "")
    options = [match[0] for word in command.words[1:] if (match := OPTION.match(word))]
    return [option for option in options if option not in known]


@cache
def _known(program: Path, *words: str) -> set[str]:
    """Options of a subcommand, for `create secret` also of `generic`, and the global options."""
    words = tuple(word for word in words if word)
    topics = [(*words, "--help"), *([(*words, "generic", "--help")] if words[-1] == "secret" else [])]
    texts = [subprocess.run([program, *topic], capture_output=True, text=True, check=True).stdout for topic in topics]
    if program.name == "kubectl":
        texts.append(subprocess.run([program, "options"], capture_output=True, text=True, check=True).stdout)
    return {option for text in texts for option in re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", text, re.MULTILINE)} | {
        option for text in texts for option in re.findall(r"^ +(-\w), --", text, re.MULTILINE)
    }


@pytest.mark.cluster
def test_options_of_helm_and_kubectl_exist() -> None:
    try:
        tools = {"helm": ensure((HELM,)).path(HELM), "kubectl": ensure((KUBE,)).path(KUBE).with_name("kubectl")}
    except ToolMissing as error:
        leave_out(error)
    checked = {name: list(documented(name)) for name in tools}
    assert min(map(len, checked.values())) > 5
    wrong = {
        f"{command.page}: {command.text}": unknown
        for name, of_program in checked.items()
        for command in of_program
        if (unknown := unknown_options(tools[name], command))
    }
    assert wrong == {}
    (misspelt,) = split("README.md", "helm upgrade omni x --reset-then-reuse-value -n a --namespaces b")
    assert unknown_options(tools["helm"], misspelt) == ["--reset-then-reuse-value", "--namespaces"]


def test_an_upgrade_takes_the_new_charts_defaults() -> None:
    """`--reuse-values`, or no option, would keep old defaults or drop given values."""
    helm_commands = [command for command in documented("helm") if command.words[:2] == ("helm", "upgrade")]
    assert len(helm_commands) >= 1
    assert [command for command in helm_commands if "--reset-then-reuse-values" not in command.words] == []
