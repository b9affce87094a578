"""The README and the documents: links lead somewhere, commands exist, the job of the README is a job."""

import re
import subprocess
from pathlib import Path

import pytest

from omni_operator.api.files.job_loader import load_job

README_LINES = 120
# Limits for the pages in docs/ without decision records; the words include the README and generated pages.
PAGES = 30
WORDS = 60_000
CELL_WORDS = 30
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def documents(root: Path) -> list[Path]:
    """Markdown files of the repository."""
    folders = ("docs", "examples", "images", "charts", "e2e")
    return [*root.glob("*.md"), *(path for folder in folders for path in (root / folder).rglob("*.md"))]


def missing_links(path: Path) -> list[str]:
    """Relative links of a Markdown file to files that do not exist, and to headings that are not there."""
    missing = []
    for target in LINK.findall(CODE.sub("code", path.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, heading = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (heading and file.suffix == ".md" and heading not in headings(file)):
            missing.append(target)
    return missing


def headings(path: Path) -> set[str]:
    """The anchors of a Markdown file, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_between_documents_lead_somewhere(root: Path) -> None:
    pages = documents(root)
    assert len(pages) > 15
    broken = {path.relative_to(root).as_posix(): links for path in pages if (links := missing_links(path))}
    assert broken == {}


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](page.md#one-heading) [b](gone.md) [c](#no-heading) [d](https://example.org)\n")
    assert missing_links(page) == ["gone.md", "#no-heading"]


def test_every_page_is_in_the_index(root: Path) -> None:
    for folder in ("docs", "docs/adr"):
        index = root / folder / "README.md"
        linked = {(index.parent / name.partition("#")[0]).resolve() for name in LINK.findall(index.read_text("utf-8"))}
        pages = {path.resolve() for path in (root / folder).glob("*.md")} - {index.resolve()}
        assert pages - linked == set(), f"pages that {folder}/README.md does not name"
    assert "docs/README.md" in LINK.findall((root / "README.md").read_text("utf-8"))


def pages(root: Path) -> list[Path]:
    """The pages of docs/, without decision records."""
    return [path for path in (root / "docs").rglob("*.md") if path.parent.name != "adr"]


def long_cells(text: str) -> list[str]:
    """Cells of tables with too many words."""
    rows = [line for line in text.splitlines() if line.lstrip().startswith("|")]
    return [cell.strip() for row in rows for cell in row.split("|") if len(cell.split()) > CELL_WORDS]


def test_the_documentation_is_short(root: Path) -> None:
    listed = pages(root)
    assert len(listed) <= PAGES, "merge pages: a reader chooses from this list"
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in [*listed, root / "README.md"])
    assert words <= WORDS, "say a fact once, and leave out what no reader needs"


def test_no_cell_of_a_table_is_a_paragraph(root: Path) -> None:
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in [*pages(root), root / "README.md"]}
    assert {name: cells for name, text in texts.items() if (cells := long_cells(text))} == {}
    assert long_cells(f"| {'word ' * 31}| short |") == [("word " * 31).strip()]


def test_readme_is_short(root: Path) -> None:
    assert len((root / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_commands_in_documents_exist(root: Path, name: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = set(re.findall(r"(?:^ {4}|`|^)make ([a-z-]+)", (root / name).read_text(encoding="utf-8"), re.MULTILINE))
    assert used
    assert used <= targets


def test_the_job_in_the_readme_is_valid(root: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        path = tmp_path / "job.yaml"
        path.write_text(block, encoding="utf-8")
        assert load_job(path).job.metadata.name


def test_make_clean_removes_no_results_of_runs(root: Path) -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "clean"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    removed = {Path(word).parts[0] for word in commands.split() if not word.startswith("-")}
    assert ".venv" in removed
    assert removed.isdisjoint({"runs", "dist", "examples"})
