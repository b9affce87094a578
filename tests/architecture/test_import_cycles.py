"""Modules of a package do not import each other in a cycle, imports inside functions included."""

import graphlib

import grimp
import pytest


def find_cycle(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle, the first one again at the end; empty if there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["verl_omni", "omni_operator"])
def test_there_is_no_import_cycle(package: str) -> None:
    graph = grimp.build_graph(package, cache_dir=None)
    assert len(graph.modules) > 50
    cycle = find_cycle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    assert cycle == [], " <- ".join(cycle)


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert sorted(find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}})[1:]) == ["b", "c"]
