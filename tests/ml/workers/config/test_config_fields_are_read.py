"""Every field of the typed settings is read somewhere: a setting that nothing reads must work, be refused, or go.

Fields are matched by name alone, so a field that shares its name with one that is read counts as read.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from verl.base_config import BaseConfig

import verl_omni
from tests.ml.workers.config.test_reference_sections import SECTIONS as KINDS
from verl_omni.settings_schema.reference_settings import rules
from verl_omni.workers import algorithms, config

PACKAGE = Path(verl_omni.__file__).parent
DEFINED_IN = PACKAGE / "workers" / "config"
SECTIONS = {kind: section for section, kind in KINDS.items()}
# Fields that this package does not read, and who does.
READ_ELSEWHERE = {
    "DiffusionModelConfig.local_path": "verl's server: verl/workers/rollout/vllm_rollout/vllm_async_server.py",
    "DiffusionModelConfig.hf_config": "verl's server: verl/workers/rollout/vllm_rollout/vllm_async_server.py",
    "DiffusionModelConfig.lora": "verl's server: verl/workers/rollout/vllm_rollout/vllm_async_server.py",
}
# Fields that are only validated: every value but those that mean what is done anyway is refused.
VALIDATED = {"DiffusionActorConfig.strategy": "fsdp and fsdp2 both mean FSDP2; test_config.py refuses another"}


def config_types() -> list[type]:
    """The settings types that this package defines: those of workers/config, and the losses of the algorithms."""
    for module in pkgutil.iter_modules(algorithms.__path__):
        importlib.import_module(f"{algorithms.__name__}.{module.name}")
    losses = _subclasses(config.DiffusionLossConfig)
    return [*(getattr(config, name) for name in config.__all__), *losses]


def _subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def own_fields(kind: type) -> list[str]:
    """Fields that the type itself declares; those that it inherits from verl are verl's."""
    return [field.name for field in dataclasses.fields(kind) if field.name in inspect.get_annotations(kind)]


def read_names(sources: Iterable[str]) -> set[str]:
    """Attributes that are read, names of keys in `x["name"]` and `x.get("name")`, and names given to getattr."""
    found: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Subscript):
                found |= _text(node.slice)
            elif isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called in ("getattr", "get", "select"):
                    found |= {name for argument in node.args for name in _text(argument)}
    return found


def _text(node: ast.expr) -> set[str]:
    return {node.value.rpartition(".")[2]} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def engine_fields() -> set[str]:
    """Sampling parameters of the engine: a request carries every field of `pipeline` and `algo` by name.

    Read from the source, because importing the engine takes half a minute.
    """
    engine = importlib.util.find_spec("vllm_omni")
    assert engine is not None and engine.submodule_search_locations is not None
    source = Path(engine.submodule_search_locations[0], "inputs", "data.py").read_text()
    (params,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == "OmniDiffusionSamplingParams"
    )
    return {
        line.target.id for line in params.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }


def has_rule(kind: type, name: str) -> bool:
    """Whether the reference has the setting and `settings_schema/reference_settings.yaml` says what becomes of it.

    What the types do with those is in test_reference_sections.py.
    """
    section = f"actor_rollout_ref.{SECTIONS.get(kind, '')}.{name}"
    return section in rules() or any(known.startswith(f"{section}.") for known in rules())


def unread(kinds: Iterable[type], names: set[str]) -> list[str]:
    """Fields that are neither read nor excused, as `Type.field`."""
    excused = {*READ_ELSEWHERE, *VALIDATED}
    fields = [f"{kind.__name__}.{name}" for kind in kinds for name in own_fields(kind) if not has_rule(kind, name)]
    return [field for field in fields if field not in excused and field.rpartition(".")[2] not in names]


@pytest.fixture(scope="module")
def names() -> set[str]:
    """What the package reads outside workers/config, and inside it in methods other than checks of values."""
    outside = [path.read_text() for path in PACKAGE.rglob("*.py") if not path.is_relative_to(DEFINED_IN)]
    inside = [ast.unparse(node) for path in DEFINED_IN.rglob("*.py") for node in _uses(ast.parse(path.read_text()))]
    return read_names([*outside, *inside])


def _uses(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of methods, without those that only refuse a value."""
    for method in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        yield from (line for line in method.body if not any(isinstance(part, ast.Raise) for part in ast.walk(line)))


def test_every_field_of_the_settings_is_read(names: set[str]) -> None:
    kinds = config_types()
    assert {"DiffusionModelConfig", "FlowGRPOLossConfig"} < {kind.__name__ for kind in kinds}
    assert unread(kinds, names | engine_fields()) == []


def test_a_field_that_nothing_reads_is_found(names: set[str]) -> None:
    @dataclasses.dataclass
    class Spoiled(BaseConfig):
        seed: int = 0
        nobody_reads_this_field: int = 0

    assert unread([Spoiled], names) == ["Spoiled.nobody_reads_this_field"]


@pytest.mark.parametrize(("field", "reader"), READ_ELSEWHERE.items())
def test_what_verl_reads_is_still_read_there(field: str, reader: str) -> None:
    import verl

    source = Path(verl.__file__).parents[1] / reader.partition(": ")[2]
    assert field.rpartition(".")[2] in read_names([source.read_text()])


def test_every_exception_is_a_field() -> None:
    declared = {f"{kind.__name__}.{name}" for kind in config_types() for name in own_fields(kind)}
    assert {*READ_ELSEWHERE, *VALIDATED} <= declared
