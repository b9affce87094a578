"""A short module that one other module imports is a part of that one, or has a reason to stand alone."""

from __future__ import annotations

from typing import Any

import grimp

LEAST = 40
# Folders in which a module is one of a kind, however short.
ONE_OF_A_KIND = {
    "verl_omni/compat/": "a patch",
    "verl_omni/pipelines/": "a part of a model family",
    "verl_omni/reward_loop/rewards/": "a scorer",
    "operator/omni_operator/plan/": "a kind of object",
}
ALONE = {
    "operator/omni_operator/api/crd/definition_fields.py": "PURE, and the module that imports it asks the cluster",
    "operator/omni_operator/status/report/wake_times.py": "PURE, and the module that imports it makes requests",
    "operator/omni_operator/partial_packages.py": "runs before anything that imports kubernetes (docs/adr/0009)",
    "verl_omni/trainer/data/parquet_types.py": "PURE, and the module that imports it reads files",
    "verl_omni/trainer/generation/rank_rows.py": "PURE, and the loop that imports it has no room for it",
    "verl_omni/trainer/run/stop_signal.py": "the entry point that imports it has no room for it",
    "verl_omni/workers/rollout/llm_server.py": "an import path of the reference",
    "verl_omni/workers/rollout/vllm_rollout/vllm_omni_async_server.py": "an import path of the reference",
    "verl_omni/workers/rollout/vllm_rollout/judge/server_watch.py": "loads no engine, as the processes of its test",
}


def find_small(sizes: dict[str, int], importers: dict[str, set[str]]) -> set[str]:
    """Paths of short modules with one importer. A package's `__init__` and `__main__` are not modules to move."""
    return {
        path
        for path, lines in sizes.items()
        if lines < LEAST and len(importers[path]) == 1 and not path.endswith(("__init__.py", "__main__.py"))
    }


def test_a_short_module_with_one_user_has_a_reason(modules: list[Any]) -> None:
    graphs = {name: grimp.build_graph(name, cache_dir=None) for name in ("verl_omni", "omni_operator")}
    importers = {
        module.path: graphs[module.name.partition(".")[0]].find_modules_that_directly_import(module.name)
        for module in modules
    }
    small = find_small({module.path: module.lines for module in modules}, importers)
    assert {path for path in small if not path.startswith(tuple(ONE_OF_A_KIND))} == set(ALONE)


def test_a_short_module_is_found() -> None:
    importers = {"a.py": {"b"}, "c.py": {"b", "d"}, "e.py": {"b"}, "f/__init__.py": {"b"}}
    assert find_small({"a.py": 39, "c.py": 9, "e.py": 40, "f/__init__.py": 1}, importers) == {"a.py"}
