"""A default stands in the trainer's settings files alone: typed settings read it from there."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class

from verl_omni.settings_schema import layout
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE, fill_defaults, with_defaults


def typed_groups() -> Iterator[tuple[type[Any], dict[str, Any]]]:
    """Each settings class of this package, and the defaults of its group in the files."""
    common = layout.defaults({})
    groups = [value for _, value in layout.flat_settings(common) if isinstance(value, dict)]
    for group in [*groups, *map(layout.loss_defaults, layout.algorithms())]:
        if str(group.get("_target_", "")).startswith("verl_omni."):
            yield get_class(group["_target_"]), group


GROUPS = list(typed_groups())


def literals(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The defaults that are written as plain values in a class."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    for line in definition.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            try:
                yield line.target.id, ast.literal_eval(line.value)
            except ValueError:
                continue


def test_all_typed_groups_are_seen() -> None:
    assert len({kind for kind, _ in GROUPS}) == 10 + len(layout.algorithms())


@pytest.mark.parametrize(("kind", "group"), GROUPS, ids=[kind.__name__ for kind, _ in GROUPS])
def test_no_class_repeats_a_default_of_the_files(kind: type[Any], group: dict[str, Any]) -> None:
    literal_defaults = {name: list(value) if isinstance(value, tuple) else value for name, value in literals(kind)}
    repeated = [
        name
        for name, value in literal_defaults.items()
        if name in group and value == group[name] and type(value) is type(group[name])
    ]
    assert repeated in ([], ["loss_mode"]), "write FROM_FILE; loss_mode selects the file"


@pytest.mark.parametrize(("kind", "group"), GROUPS, ids=[kind.__name__ for kind, _ in GROUPS])
def test_every_default_of_a_class_is_filled_in(kind: type[Any], group: dict[str, Any]) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    assert FROM_FILE not in defaults.values()
    read = [name for name in group if name in defaults and defaults[name] == group[name]]
    assert len(read) > 0


def commented() -> set[str]:
    """Names of the settings with a comment in the trainer's settings file."""
    names: list[tuple[int, str]] = []
    commented_names = set()
    file = Path(layout.__file__).parents[1] / "trainer" / "config" / "diffusion_trainer.yaml"
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"( *)(\w+):", line):
            names = [*((depth, name) for depth, name in names if depth < len(match[1])), (len(match[1]), match[2])]
            if " # " in line:
                commented_names.add(".".join(name for _, name in names))
    return commented_names


@pytest.mark.parametrize("kind", {kind for kind, _ in GROUPS}, ids=lambda kind: kind.__name__)
def test_a_setting_is_explained_by_its_class_or_by_its_comment_in_the_file(kind: type[Any]) -> None:
    targets = {
        value["_target_"].rpartition(".")[2]: name
        for name, value in layout.flat_settings(layout.defaults({}))
        if isinstance(value, dict) and "_target_" in value
    }
    explained = re.findall(r"^    ([\w, ]+): ", (inspect.getdoc(kind) or "").partition("Attributes:")[2], re.MULTILINE)
    names = {name for entry in explained for name in entry.split(", ")}
    if kind.__name__ in targets:
        read = set(re.findall(r"^    (\w+): .+ = FROM_FILE\b", inspect.getsource(kind), re.MULTILINE))
        comments = {name for name in read if f"{targets[kind.__name__]}.{name}" in commented()}
    else:
        comments = {field.name for field in dataclasses.fields(kind)} - {"loss_mode"}  # each has one: `make crds`
    assert names & comments == set()


def test_a_default_that_a_class_cannot_have_is_refused() -> None:
    for name in ("absent", "seed", "path"):
        kind = type("Settings", (), {name: FROM_FILE})
        with pytest.raises(TypeError, match=rf"Settings\.{name}: trainer/config has no default that a class can have"):
            with_defaults("actor_rollout_ref.actor" if name != "path" else "actor_rollout_ref.model")(kind)


def test_a_list_becomes_a_tuple_that_all_objects_may_share() -> None:
    kind = type("Settings", (), {"betas": FROM_FILE})
    fill_defaults(kind, {"betas": [0.9, 0.999]})
    assert kind.betas == (0.9, 0.999)  # type: ignore[attr-defined]
