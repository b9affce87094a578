"""Pages for users: every job and setting that they show is valid, every command of drl in them can be parsed."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.testing import CliRunner

from control.cli.document_blocks import PAGES, ROOT, Block, blocks, commands, inline_commands
from omni_operator.cli.main import app
from omni_operator.plan import ClusterSettings

BLOCKS = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"sh", "yaml", "python", "json", "text", "toml"}
# Setting with which the admin of the cluster allows a capability, as the page says.
ALLOWED = {"IPC_LOCK": "podPolicy: {capabilities: [IPC_LOCK]}\n"}
SMALLEST = {"README.md"}  # whose job leads to warnings
PROGRAM: Any = typer.main.get_command(app)
UsageError: Any = typer.BadParameter.__base__
# A part of a job in the docs is valid in this one.
JOB: dict[str, Any] = {
    "apiVersion": "diffusionrl.io/v1alpha1",
    "kind": "DiffusionRLJob",
    "metadata": {"name": "a-job"},
    "spec": {
        "model": {"base": "shapes-sd3"},
        "data": {"train": ["train.jsonl"]},
        "reward": {"scorers": [{"name": "jpeg"}]},
        "rollout": {"replicas": 8},
        "trainer": {"totalSteps": 1, "accelerator": {"vendor": "NVIDIA", "count": 8}},
        "checkpoint": {"claimName": "runs"},
    },
}


def load(text: str) -> Any:
    return YAML(typ="safe").load(text)


def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    both = {name: merged(base[name], part[name]) for name in base.keys() & part.keys() if isinstance(base[name], dict)}
    return {**base, **part, **both}


def kind(block: Block) -> str:
    """What a YAML block is: a job, a part of one, values of the chart, or settings of the operator for `drl`."""
    body = load(block.text)
    if "kind" in body:
        return str(body["kind"])
    if body.keys() & {"dependencies", "omni-operator"}:
        return "umbrella chart"
    if body.keys() <= {"spec"} or body.keys() <= {*JOB["spec"], "algorithm"}:
        return "part of a job"
    return "values" if body.keys() <= {"jobs"} else "settings"


def of_kind(*kinds: str) -> list[Any]:
    shown = [block for block in BLOCKS if block.language == "yaml" and kind(block) in kinds]
    return [pytest.param(block, id=block.place) for block in shown]


def lines() -> Iterator[Any]:
    """Commands of drl in shell blocks, which are whole, and in running text, where a command may be only named."""
    for block in BLOCKS:
        for command in commands(block) if block.language == "sh" else ():
            if (words := drl_arguments(list(command.words))) is not None:
                yield pytest.param(words, True, id=f"{block.page}-{command.text}")
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for line in dict.fromkeys(inline_commands(page)):
            if re.match(r"(kubectl )?drl ", line) and name != "docs/reference/cli.md":  # a table of the commands
                words = shlex.split(line.partition(" > ")[0].replace("…", "").replace("...", ""))
                yield pytest.param(drl_arguments(words), False, id=f"{name}-{line}")


def drl_arguments(words: list[str]) -> list[str] | None:
    """The words after `drl` or `kubectl drl`; None for another program."""
    words = words[1:] if words[:2] == ["kubectl", "drl"] else words
    return words[1:] if words and Path(words[0]).name == "drl" else None


def parse(arguments: list[str]) -> None:
    """Parse a command line as drl would, without running it.

    Raises:
        UsageError: there is no such command or option, or an argument is missing.
    """
    command = PROGRAM
    context = typer.Context(command, info_name="drl")
    while hasattr(command, "commands"):
        name, command, arguments = command.resolve_command(context, arguments)
        context = typer.Context(command, info_name=name, parent=context)
    command.parse_args(context, arguments)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_every_block_says_what_it_is(page: Path) -> None:
    page_blocks = blocks(page)
    others = [block.place for block in page_blocks if block.language not in LANGUAGES]
    assert others == [], f"write a block with a fence and one of {sorted(LANGUAGES)}, so that a test can check it"
    for block in page_blocks:
        if block.language == "json":
            json.loads(block.text)


def test_the_settings_on_the_page_of_drl_have_the_port_of_the_chart() -> None:
    (text,) = (block.text for block in BLOCKS if block.page == "docs/reference/cli.md" and "reportUrl:" in block.text)
    values = load((ROOT / "charts" / "omni-operator" / "values.yaml").read_text())
    url = ClusterSettings.model_validate(load(text)).report_url
    assert str(url).rpartition(":")[2] == str(values["reports"]["port"])


@pytest.mark.parametrize("block", of_kind("DiffusionRLJob"))
def test_a_job_in_the_docs_is_valid_on_a_cluster(block: Block, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    settings = tmp_path / "settings.yaml"
    job.write_text(block.text, encoding="utf-8")
    allowed = [line for capability, line in ALLOWED.items() if capability in block.text]
    settings.write_text("".join(["image: i\n", *allowed]), encoding="utf-8")
    arguments = ["validate", "--cluster", str(job)]
    result = CliRunner().invoke(app, [*arguments, "--settings", str(settings)])
    assert result.exit_code == 0, result.stderr
    if block.page not in SMALLEST:
        assert result.stderr == ""
    if allowed:
        assert "the cluster's admin decides" in CliRunner().invoke(app, [*arguments, "--image", "i"]).stderr


@pytest.mark.parametrize("block", of_kind("part of a job"))
def test_a_part_of_a_job_in_the_docs_is_valid_in_a_job(block: Block, tmp_path: Path) -> None:
    body = load(block.text)
    job = merged(JOB, body if "spec" in body else {"spec": body})
    path = tmp_path / "job.yaml"
    YAML().dump(job, path)
    result = CliRunner().invoke(app, ["validate", "--cluster", "--image", "i", str(path)])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("block", of_kind("values", "settings"))
def test_settings_of_the_operator_in_the_docs_exist(block: Block) -> None:
    body = load(block.text)
    values = load((ROOT / "charts" / "omni-operator" / "values.yaml").read_text())
    if kind(block) == "values":
        assert body["jobs"].keys() <= values["jobs"].keys()
        body = {"podPolicy": body["jobs"]["podPolicy"]}
    ClusterSettings.model_validate(body)


def test_no_yaml_block_is_of_another_kind() -> None:
    kinds = [kind(block) for block in BLOCKS if block.language == "yaml"]
    of_gitops = {"ConfigMap", "Kustomization", "umbrella chart"}  # its script and its chart have tests of their own
    assert set(kinds) == {"DiffusionRLJob", "part of a job", "values", "settings", *of_gitops}
    assert kinds.count("DiffusionRLJob") > 2 and kinds.count("part of a job") > 6


@pytest.mark.parametrize(("words", "whole"), list(lines()))
def test_a_command_in_the_docs_can_be_parsed(words: list[str], whole: bool) -> None:
    if not words or words[0].isupper():  # `drl COMMAND --help`
        return
    for word in words:
        if word.startswith("examples/") and "my-" not in word:  # those are files that the reader makes
            assert (ROOT / word).exists(), word
    try:
        parse(words)
    except typer.BadParameter:
        assert not whole


def test_a_misspelt_option_and_a_missing_argument_are_found() -> None:
    assert len(list(lines())) > 60
    for wrong in (["validate", "--clustr", "a.yaml"], ["fetch"], ["fecth", "a"]):
        with pytest.raises(UsageError):
            parse(wrong)


def test_blocks_of_every_form_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    listed = "1. A list\n\n   ~~~sh\n   drl \\\n     why | cat  # all\n   ~~~\n\n    of two parts\n\n"
    page.write_text(f"{listed}Text\n\n    drl lost\n\n```\nno language\n```\n")
    page_blocks = blocks(page)
    assert [(block.line, block.language) for block in page_blocks] == [(3, "sh"), (12, "indented"), (14, "")]
    assert [command.words for command in commands(page_blocks[0])] == [("drl", "why"), ("cat",)]
