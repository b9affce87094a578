"""Hooks of the docs site (mkdocs.yml): pages as GitHub shows them, in the order of docs/README.md.

Links between documents stay as in the repository. A link to a document outside docs/ leads to its page on the site;
a link to any other file becomes the file's name. PURE, besides reading the repository.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
# Documents outside docs/ that have a page on the site.
OUTSIDE = {
    "README.md": "quick-start.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "charts/omni-operator/README.md": "chart-values.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]\n]|\n(?!\n))*)\]\(([^)\s]+)\)")  # its text may go over lines of a paragraph
ITEM = re.compile(r"^ {0,3}([-*]|\d+\.) ")
FENCE = re.compile(r"^ *(```|~~~)")


def github_slug(title: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", separator)


def rewrite(text: str, source: str, page: str) -> str:
    """A document with links for the site, and lists that Python's Markdown sees.

    Args:
        source: path of the document in the repository. page: of its page on the site.
    """
    parts: list[str] = []
    lines: list[str] = []  # since the last fence
    fenced = False

    def end_part() -> None:
        part = "\n".join(lines)
        parts.append(part if fenced else LINK.sub(lambda found: _link(found, source, page), part))
        lines.clear()

    for line in text.splitlines():
        if FENCE.match(line):
            if lines:
                end_part()
            fenced = not fenced
            parts.append(line)
            continue
        last = (lines or parts or [""])[-1]
        if not fenced and ITEM.match(line) and last.strip() and not re.match(r"^ *([-*]|\d+\.) |^ {2,}", last):
            lines.append("")
        lines.append(line)
    if lines:
        end_part()
    return "\n".join(parts) + "\n"


def _link(found: re.Match[str], source: str, page: str) -> str:
    mark, text, target = found.groups()
    if "://" in target or target.startswith(("#", "mailto:")):
        return found[0]
    name, hash_mark, heading = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if path in OUTSIDE:
        destination = OUTSIDE[path]
    elif path.startswith(f"{DOCS}/"):
        destination = path.removeprefix(f"{DOCS}/")
    else:
        return f"{text} (`{path}`)" if text != path else f"`{path}`"
    return f"{mark}[{text}]({posixpath.relpath(destination, posixpath.dirname(page) or '.')}{hash_mark}{heading})"


def navigation(index: str, pages: list[str]) -> list[Any]:
    """Sections and pages in the order of docs/README.md; decision records are a section below its last.

    Args:
        index: text of docs/README.md. pages: all pages of decision records.
    """
    sections: list[Any] = ["README.md", {"Start": [{"Quick start": "quick-start.md"}]}]
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        entries = []
        for _, _, target in LINK.findall(body):
            name = OUTSIDE.get(posixpath.normpath(posixpath.join(DOCS, target.partition("#")[0])), target)
            if name.endswith(".md") and "://" not in name and not name.startswith("..") and name not in entries:
                entries.append({"Values of the chart": name} if name == "chart-values.md" else name)
        if title == "Start":
            sections[1]["Start"] += entries
        else:
            sections.append({title: entries})
    decisions = [name for name in pages if name != "adr/README.md"]
    last = next(iter(sections[-1].values()))
    last += ["changelog.md", "security-policy.md"]
    last[last.index("adr/README.md")] = {"Decisions": ["adr/README.md", *decisions]}
    return sections


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set navigation and anchors."""
    docs = Path(config.docs_dir)
    records = sorted(path.relative_to(docs).as_posix() for path in (docs / "adr").glob("*.md"))
    config.nav = navigation((docs / "README.md").read_text(encoding="utf-8"), records)
    config.mdx_configs["toc"]["slugify"] = github_slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/."""
    for source, page in OUTSIDE.items():
        text = rewrite((ROOT / source).read_text(encoding="utf-8"), source, page)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page of docs/."""
    path = page.file.src_uri
    return markdown if path in OUTSIDE.values() else rewrite(markdown, f"{DOCS}/{path}", path)
