"""Committed files that are written from the code, some of them in part."""

from pathlib import Path


def with_part(page: Path, begin: str, end: str, part: str) -> dict[Path, str]:
    """The page and its text with `part` between the lines `begin` and `end`; the rest stays."""
    return {page: replace_part(page.read_text(encoding="utf-8"), begin, end, part)}


def replace_part(text: str, begin: str, end: str, part: str) -> str:
    """The text with `part` between the lines `begin` and `end`."""
    head, _, after = text.partition(begin)
    return f"{head}{begin}\n\n{part}\n\n{end}{after.partition(end)[2]}"


def write(files: dict[Path, str]) -> None:
    """Write the files."""
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


def stale(files: dict[Path, str]) -> list[Path]:
    """The files that are missing or have another text."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
