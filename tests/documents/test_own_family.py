"""docs/guides/own-family.md shows the code of examples/own-family, whose parts have the documented members."""

import ast
import re
from pathlib import Path

from verl_omni.pipelines.registry import TrainingAdapter
from verl_omni.pipelines.sample_shapes import SampleShapes

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "own-family"
PAGE = (ROOT / "docs" / "guides" / "own-family.md").read_text(encoding="utf-8").partition("\n## Extensions\n")[0]


def test_the_page_shows_the_files_as_they_are() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*FOLDER.rglob("*.py"), FOLDER / "job.yaml")]
    shown = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 6
    assert [block for block in shown if not any(block in text for text in texts)] == []


def test_the_page_lists_every_file() -> None:
    (listed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    sources = [path for path in FOLDER.rglob("*") if path.suffix in (".py", ".yaml", ".jsonl")]
    files = {path.relative_to(FOLDER).as_posix() for path in sources}
    assert {name for name in re.split(r"[\s,]+", listed) if name in files} == files


def test_the_adapter_has_the_members_of_the_interface() -> None:
    parsed = ast.parse((FOLDER / "my_flux" / "training.py").read_text())
    (adapter,) = (node for node in parsed.body if isinstance(node, ast.ClassDef))
    assert names(adapter.body) == members(TrainingAdapter)
    defined = names(ast.parse((FOLDER / "my_flux" / "shapes.py").read_text()).body)
    assert members(SampleShapes) - {"sequence_length"} <= defined, "a length is for families that split the sequence"


def members(protocol: type) -> set[str]:
    """Public attributes and methods of an interface."""
    return {name for name in {*protocol.__annotations__, *vars(protocol)} if not name.startswith("_")}


def names(body: list[ast.stmt]) -> set[str]:
    """What a class or a module defines."""
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return functions | {target.id for target in targets if isinstance(target, ast.Name)}
