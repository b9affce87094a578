"""The docs site: links as in the repository, all pages in the navigation, nothing from the network."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.docs_site import github_slug, navigation, rewrite
from omni_operator import client

ROOT = Path(__file__).resolve().parents[3]
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"?(?:https?:)?//|<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]+//"
)


def names(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in inner for name in names(entry)]


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        ("docs/a.md", "[b](b.md#c) [d](#d) [e](https://e.org)", "[b](b.md#c) [d](#d) [e](https://e.org)"),
        ("docs/a.md", "[start](../README.md)", "[start](quick-start.md)"),
        ("docs/a.md", "see [the job](../examples/red-grpo.yaml)", "see the job (`examples/red-grpo.yaml`)"),
        ("README.md", "![x](docs/report.png) [y](docs/reference/cli.md)", "![x](report.png) [y](reference/cli.md)"),
        ("docs/adr/0001-a.md", "[o](../operator.md) [c](../../crds/x.yaml)", "[o](../operator.md) c (`crds/x.yaml`)"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, line: str, expected: str) -> None:
    page = source.removeprefix("docs/") if source.startswith("docs/") else "quick-start.md"
    assert rewrite(line, source, page) == f"{expected}\n"


def test_a_links_text_may_go_over_lines_and_code_between_has_none() -> None:
    fence = "\n```text\n[x](../a.py)\n```\n"
    text = f"[0, 5) and [two\nwords](../README.md){fence}[the\njob](../a.yaml)\n\n[no\n\nlink](../b.md)\n"
    rewritten = f"[0, 5) and [two\nwords](quick-start.md){fence}the\njob (`a.yaml`)\n\n[no\n\nlink](../b.md)\n"
    assert rewrite(text, "docs/a.md", "a.md") == rewritten


def test_code_stays_and_a_list_after_text_is_a_list() -> None:
    text = "Text:\n- one\n- two\n  more\n- three\n```sh\na:\n- [x](y.yaml)\n```\n"
    assert rewrite(text, "docs/a.md", "a.md") == f"Text:\n\n{text.removeprefix('Text:' + chr(10))}"


def test_anchors_are_those_of_github() -> None:
    assert github_slug("What `drl` does, and when?") == "what-drl-does-and-when"


def test_every_page_is_in_the_navigation_once() -> None:
    records = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "adr").glob("*.md"))
    listed = names(navigation((ROOT / "docs" / "README.md").read_text("utf-8"), records))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert pages <= set(listed)
    assert {"quick-start.md", "contributing.md", "changelog.md", "chart-values.md"} <= set(listed)


@pytest.mark.slow  # builds all pages
def test_the_site_loads_nothing_from_the_network(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("mkdocs")),
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []
    styles = [path.name for path in tmp_path.rglob("*.css") if re.search(r"url\(\"?https?://", path.read_text("utf-8"))]
    assert styles == []
    reference = (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in client.__all__ if f'id="omni_operator.client.{name}"' not in reference] == []
