"""Python in the documents: it can be parsed, and what it imports from this repository exists."""

import ast
import re
from pathlib import Path

import pytest

from control.cli.document_blocks import PAGES, ROOT, Block, blocks

PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]
# Blocks that a test runs, or compares with a file that a test runs.
RUN = {
    "docs/reference/algorithms.md": "tests/ml/trainer/data/test_preferences.py",
    "docs/reference/cli.md": "tests/control/client/test_documented_client.py",
    "docs/guides/own-family.md": "tests/documents/test_own_family.py",
    "docs/start/own-reward.md": "tests/contract/test_own_reward.py",
}
# Pages whose blocks no test runs; the named test does the same.
SIMILAR = {
    "docs/contribute/testing.md": "e2e/suites/test_control_plane.py",
    "docs/guides/results.md": "tests/ml/engine/runs/test_whole_job.py",
    "docs/guides/pools.md": "tests/ml/engine/server/test_standalone.py",
}
PACKAGES = {"verl_omni": ROOT, "omni_operator": ROOT / "operator", "e2e": ROOT}


def missing(text: str) -> list[str]:
    """Names that a block imports from this repository and that are not there."""
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
        if (root := PACKAGES.get(node.module.partition(".")[0])) and not _has(root, node.module, alias.name)
    ]


def _has(root: Path, module: str, name: str) -> bool:
    path = root.joinpath(*module.split("."))
    if (path / f"{name}.py").exists() or (path / name).is_dir():
        return True
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not source.exists():
        return False
    text = source.read_text(encoding="utf-8")
    inner = re.findall(r"^from \.(\w+) import \*", text, re.MULTILINE)
    return re.search(rf"\b{name}\b", text) is not None or any(_has(root, f"{module}.{sub}", name) for sub in inner)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in PYTHON])
def test_what_a_block_imports_exists(block: Block) -> None:
    assert missing(block.text) == []


def test_every_page_with_python_has_a_test() -> None:
    listed = RUN | SIMILAR
    assert {block.page for block in PYTHON} == listed.keys()
    assert [path for path in listed.values() if not (ROOT / path).exists()] == []
    pages = {page: (ROOT / test).read_text(encoding="utf-8") for page, test in RUN.items()}
    assert [page for page, text in pages.items() if Path(page).name not in text] == []


def test_a_name_that_is_not_there_is_found() -> None:
    assert missing("from omni_operator.api import load_job, lode_job") == ["omni_operator.api.lode_job"]
    assert missing("from verl_omni.extension import register_loss") == ["verl_omni.extension.register_loss"]
