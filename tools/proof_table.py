"""The table of tests that each example and recipe has passed, in examples/README.md.

Examples and recipes are read from the tests that train them, dates from the records of tests and benchmarks.
"""

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.generated_file import with_part

ROOT = Path(__file__).parents[1]
PAGE = Path("examples/README.md")
BEGIN = "<!-- levels: written by `make crds` -->"
END = "<!-- end of levels -->"
CPU = "2 cores"
# When each test passed last, as `make test-times` writes it.
PASSED: dict[str, dict[str, Any]] = {
    name: passed
    for file in ("tests/suite/long_tests.json", "e2e/turns.json")
    for name, passed in json.loads((ROOT / file).read_text(encoding="utf-8")).items()
}
# Examples whose benchmark met its target, and the one whose benchmark did not: docs/contribute/benchmarks.md.
CONVERGED = ("colors-grpo", "red-grpo")
RISING = "shapes-grpo"
COMPOSED = "tests/contract/test_examples_compose.py"
FORMULAS = "tests/ml/workers/algorithms"
TRAINED = "tests/ml/engine/runs/test_example_jobs.py"
OWN_FAMILY = "tests/ml/engine/runs/test_own_family.py"
IN_PODS = "e2e/suites/training"


def render() -> str:
    """The table, from the lowest level to the highest; each name is in the row of its highest level."""
    examples = {path.stem for path in (ROOT / "examples").glob("*.yaml")}
    tiny = _keys(ROOT / TRAINED, "JOBS")
    in_pods = {name for name in examples for path in (ROOT / IN_PODS).glob("*.py") if f'"{name}"' in path.read_text()}
    composed = examples - {*tiny, *in_pods, *CONVERGED, RISING}
    return "\n".join(
        [
            "| level | examples and recipes | command | hardware | date |",
            "| --- | --- | --- | --- | --- |",
            *_test_row("formula checked", "all: the loss of each algorithm", FORMULAS),
            *_test_row("settings composed", _names(composed), COMPOSED),
            *_test_row("tiny model trained", _names(tiny), TRAINED),
            *_test_row("the same, recipes", _names(_recipes()), TRAINED),
            *_test_row("own model, in pods", _names(in_pods), IN_PODS, "2 cores, fake GPUs"),
            *_test_row("own model trained", "`own-family`", OWN_FAMILY),
            "| one device | none | `make test-gpu` | | |",
            _benchmark_row("rising, one seed", RISING),
            *(_benchmark_row("converged, three seeds", name) for name in CONVERGED),
        ]
    )


def _test_row(level: str, of: str, path: str, hardware: str = CPU) -> Iterator[str]:
    """A row, dated by the least recent pass among the tests at this path."""
    dates = [passed["at"][:10] for name, passed in PASSED.items() if name.startswith(path)]
    yield f"| {level} | {of} | `pytest {path}` | {hardware} | {min(dates)} |"


def _benchmark_row(level: str, name: str) -> str:
    data = json.loads((ROOT / "docs/figures" / f"{name}.json").read_text(encoding="utf-8"))
    command = "example_job.py" if name == CONVERGED[0] else f"example_job.py --job examples/{name}.yaml"
    return f"| {level} | `{name}` | `{command}` | {data['machine'].partition(',')[0]} | {data['date']} |"


def _names(given: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(given))


def _recipes() -> list[str]:
    """Names of the recipes that are trained: the first argument of each `Recipe`."""
    tree = ast.parse((ROOT / "tests/contract/recipes.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Recipe"]
    return [ast.literal_eval(call.args[0]) for call in calls]


def _keys(module: Path, name: str) -> list[str]:
    """Keys of a dict that a module assigns to a name; the module is not imported."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return [str(key) for key in ast.literal_eval(node.value)]
    raise KeyError(f"{module} has no {name}")


def generated() -> dict[Path, str]:
    """The page with a new table."""
    return with_part(PAGE, BEGIN, END, render())
