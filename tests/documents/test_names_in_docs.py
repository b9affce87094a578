"""Fields, settings, chart values and modules that the documents name exist."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.cli.document_blocks import PAGES, ROOT, blocks, inline_commands
from verl_omni.settings_schema.layout import names_of_algorithms

# Generated from the names themselves.
LEFT_OUT = {"docs/reference/settings.md", "docs/reference/job.md"}
NAME = re.compile(r"(?<![\w./{\-@:'])[a-zA-Z_]\w*(?:\[\])?(?:\.[a-zA-Z_]\w*(?:\[\])?)+(?![\w/(\-.])")
FILE = re.compile(r"\.(py|md|ya?ml|jsonl?|txt|html|sh|tgz|whl|log|db|toml|tar|com|io|org|d|png|safetensors)$")
# Fields, values and settings that take names of their own.
OPEN = {
    "limits",
    "metadata",
    "podPolicy",
    "podTemplate",
    "requests",
    "scorer_kwargs",
    "settings",
    "tuning",
    "vllm_omni",
}
SETTING = re.compile(r"(?:^| )(?:\+{0,2})([a-z_]\w*(?:\.\w+)+)=")
# Names of other programs.
OTHERS = {
    "AsyncOmni.generate",
    "batchScheduler.name",
    "capabilities.drop",
    "deployments.apps",
    "diffusionrljob.spec",
    "functools.cache",
    "package.module",
    "pipe.transformer",
    "replica.server_address",
    "server_manager.generate",
    "torch.Tensor.copy_",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "verl_omni.scorers",  # a group of entry points
}
# Keys in the output of `drl fit --json`, and settings of the reference whose section is named without its beginning.
OURS = {"pools.trainer", "pools.rollout", "actor.rollout_correction", "model.pipeline", "model.algo"}


@cache
def fields() -> dict[str, Any]:
    """The schema of a job."""
    (path,) = (ROOT / "crds").glob("*.yaml")
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@cache
def field_names() -> frozenset[str]:
    """Dotted names of all fields."""
    names: set[str] = set()

    def walk(schema: dict[str, Any], name: str) -> None:
        names.add(name)
        for key, inner in schema.get("properties", {}).items():
            walk(inner, f"{name}.{key}")
        if "items" in schema:
            walk(schema["items"], name)

    walk(fields(), "")
    return frozenset(names)


@cache
def setting_names() -> frozenset[str]:
    """Dotted names of all settings of the trainer and of the reference."""
    names = {"", *(f".{name}" for name in names_of_algorithms())}
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    section = ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = (re.findall(r"`([\w.]+)`", line) or [line.lstrip("# ")])[0]
        elif row := re.match(r"(?:\||-) ((?:`[\w.*]+`(?:, )?)+)", line):
            names.update(f".{section}.{name}" for name in re.findall(r"`([\w.*]+)`", row[1]))
    return frozenset(names)


@cache
def value_names() -> frozenset[str]:
    """Dotted names of the chart's values."""
    values = yaml.safe_load((ROOT / "charts" / "omni-operator" / "values.yaml").read_text(encoding="utf-8"))
    names: set[str] = set()

    def walk(entry: Any, name: str) -> None:
        names.add(name)
        for key, inner in entry.items() if isinstance(entry, dict) else ():
            walk(inner, f"{name}.{key}")

    walk(values, "")
    return frozenset(names)


def exists(name: str) -> bool:
    """Whether a field, a setting or a value has the name, or ends with it; or a module or a member of one."""
    if name in OTHERS | OURS or _is_module(name):
        return True
    bare = name.replace("[]", "")
    ending = f".{bare}"
    known = (field_names(), setting_names(), value_names())
    if any(entry.endswith(ending) for names in known for entry in names):
        return True
    opened = bare
    while "." in opened:  # below a field or value that takes any content, such as podTemplate and tuning
        opened = opened.rpartition(".")[0]
        if opened.rpartition(".")[2] in OPEN or any(entry.endswith(f".{opened}.*") for entry in setting_names()):
            return True
    return False


def _is_module(name: str) -> bool:
    parts = name.split(".")
    for root in (ROOT, ROOT / "operator", ROOT / "verl_omni"):
        for count in range(len(parts), 0, -1):
            path = root.joinpath(*parts[:count])
            if path.with_suffix(".py").exists() or (count > 1 and path.is_dir()):
                return True
    return False


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name)
        for page in PAGES
        if (name := page.relative_to(ROOT).as_posix()) not in LEFT_OUT and "/adr/" not in name  # records
    ],
)
def test_what_a_page_names_exists(page: Path) -> None:
    names = {name for code in inline_commands(page) for name in NAME.findall(code) if not FILE.search(name)}
    wrong = sorted(name for name in names if not exists(name))
    assert wrong == []
    overrides = {
        name for block in blocks(page) if block.language in ("sh", "text") for name in SETTING.findall(block.text)
    }
    assert sorted(name for name in overrides if not exists(name)) == []


def test_every_exception_is_still_one() -> None:
    named = {name for page in PAGES for code in inline_commands(page) for name in NAME.findall(code)}
    assert sorted((OTHERS | OURS) - named) == []


def test_a_wrong_name_is_found() -> None:
    for name in ("spec.trainer.totalSteps", "rollout.batchesAhead", "trainer.total_training_steps", "jobs.podPolicy"):
        assert exists(name), name
    for name in ("spec.trainer.steps", "rollout.batchAhead", "trainer.total_trainings", "jobs.podPolicies"):
        assert not exists(name), name
