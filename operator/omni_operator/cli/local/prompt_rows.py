"""Checks of prompt files that need no training stack: JSON lines, and the frame of Parquet files.

The trainer checks the same and more before it starts anything (`verl_omni.trainer.data.prompt_files`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MAGIC = b"PAR1"  # at both ends of a Parquet file


def find_problem(path: Path, prompt_key: str) -> str | None:
    """The first row that has no prompt, or why the file has no rows; None if nothing is found.

    Args:
        path: a file that can be read; its name's ending says what it is.

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix == ".parquet":
        return _parquet_problem(path)
    try:
        if path.suffix == ".txt":
            return None if path.read_text(encoding="utf-8").strip() else "has no rows"
        return _lines_problem(path, prompt_key) if path.suffix == ".jsonl" else None
    except UnicodeDecodeError:
        return "is not a text file in UTF-8"


def _parquet_problem(path: Path) -> str | None:
    whole = path.stat().st_size >= 3 * len(MAGIC)  # with the size of the footer
    if whole:
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
            file.seek(-len(MAGIC), os.SEEK_END)
            whole = first == file.read() == MAGIC
    return None if whole else "is not a Parquet file, or only a part of one"


def _lines_problem(path: Path, prompt_key: str) -> str | None:
    empty = True
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if empty and line.lstrip().startswith("["):
                return None  # an array of rows, which the trainer checks
            empty = False
            if problem := _row_problem(line.strip(), prompt_key):
                return f"line {number}: {problem}"
    return "has no rows" if empty else None


def _row_problem(line: str, prompt_key: str) -> str | None:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        return f"not valid JSON: {error.msg}, column {error.colno}"
    except RecursionError:
        return "nested too deeply"
    if not isinstance(row, dict):
        return "a row must be a mapping of columns"
    if prompt_key not in row:
        return f"there is no column {prompt_key!r}; its columns: {', '.join(row) or 'none'}"
    if not isinstance(row[prompt_key], str) and not (isinstance(row[prompt_key], list) and row[prompt_key]):
        return f"column {prompt_key}: a prompt must be text or a list of messages"
    return None
