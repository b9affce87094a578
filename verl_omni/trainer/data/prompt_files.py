"""Checks of prompt files, row by row, before anything starts. Imports no ML library: `drl validate` runs them too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_omni.trainer.data.preference_columns import PairColumns, find_columns
from verl_omni.utils.messages import parse_messages
from verl_omni.utils.model_layout import pointer_problem
from verl_omni.utils.seeds import SEED_RANGE

if TYPE_CHECKING:
    from pyarrow import DataType

NEGATIVE_PROMPT = "negative_prompt"
SEED = "seed"
MAPPINGS = ("extra_info", "reward_model")
PARQUET = ".parquet"
TEXT = ".txt"
SUFFIXES = (".jsonl", ".json", PARQUET, TEXT)
PYTHON_MESSAGES = re.compile(r"\s*\[?\s*\{\s*'(role|content)'\s*:")
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # JSON escape of a surrogate; a pair of them is one character
# characters, with its sign
WHOLE_NUMBERS = range(-(2**63), 2**63)
LONGEST_NUMBER = 20


class InvalidPromptFile(ValueError):
    """A file of prompts that cannot be used; the message names file and row."""


def check_file(path: Path, prompt_key: str, *, held_out: bool = False, pairs: bool = False) -> None:
    """Check one file of prompts.

    Args:
        held_out: whether it is for evaluations, which read the column `seed`.
        pairs: whether training reads pairs of images. Of Parquet files, paths and labels are checked.

    Raises:
        FileNotFoundError: it does not exist.
        InvalidPromptFile: it cannot be read, has no rows, or a row without a usable prompt, seed or pair.
    """
    check_exists(path)
    if path.suffix not in SUFFIXES:
        raise InvalidPromptFile(f"{path}: the name of a file of prompts must end in {', '.join(SUFFIXES)}")
    has_rows = False
    columns = pair_columns(path) if pairs else None
    also = [SEED] if held_out else list(columns.names) if columns else []
    for location, row in rows(path, prompt_key, *also):
        has_rows = True
        problem = row_problem(row, prompt_key) or (_seed_problem(row.get(SEED)) if held_out else None)
        if pairs and isinstance(row, Mapping) and not problem:
            problem = (columns or _pair_columns(location, list(row))).problem(row, path.parent)
        if problem:
            raise InvalidPromptFile(f"{location}: {problem}")
    if not has_rows:
        raise InvalidPromptFile(f"{path} has no rows")


def pair_columns(path: Path) -> PairColumns | None:
    """The columns of pairs of images in a Parquet file; None for other files, each row of which has its columns.

    Raises:
        InvalidPromptFile: it has none, or cannot be read.
    """
    return _pair_columns(path, _parquet_columns(path)) if path.suffix == PARQUET else None


def order_of_pair(columns: PairColumns | None, place: str, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """`PairColumns.order` of a row of a file.

    Args:
        columns: what `pair_columns` returned.

    Raises:
        InvalidPromptFile: the row has no pair, or another label.
    """
    try:
        return (columns or find_columns(list(row))).order(row)
    except ValueError as error:
        raise InvalidPromptFile(f"{place}: {error}") from error


def _pair_columns(place: object, names: Sequence[str]) -> PairColumns:
    try:
        return find_columns(names)
    except ValueError as error:
        raise InvalidPromptFile(f"{place}: {error}") from error


def _parquet_columns(path: Path) -> list[str]:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    try:
        return list(read_schema(path).names)
    except (ArrowException, OSError) as error:
        raise InvalidPromptFile(f"{path} cannot be read as a Parquet file: {error}") from error


def check_exists(path: Path) -> None:
    """Raise FileNotFoundError, with what to correct, if there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(f"no data file {path}: correct data.train_files or data.val_files")


def rows(path: Path, prompt_key: str, *also: str) -> Iterator[tuple[str, Any]]:
    """Rows of a file, and the place of each for messages.

    Args:
        also: columns of a Parquet file that are read besides those that are checked.

    Raises:
        InvalidPromptFile: the file cannot be read.
    """
    if problem := pointer_problem(path):
        raise InvalidPromptFile(f"{path} {problem}")
    try:
        if path.suffix == PARQUET:
            yield from _parquet_rows(path, prompt_key, also)
        elif path.suffix == TEXT:
            yield from _text_rows(path, prompt_key)
        else:
            yield from _json_rows(path)
    except UnicodeDecodeError as error:
        raise InvalidPromptFile(f"{path} is not a text file in UTF-8") from error


def row_problem(row: Any, prompt_key: str) -> str | None:
    """Why a row cannot be used; None if it can. PURE."""
    if not isinstance(row, Mapping):
        return f"a row must be a mapping of columns, not {_kind(row)}"
    if prompt_key not in row:
        return _lacks_prompt(prompt_key, list(row))
    if problem := _prompt_problem(row[prompt_key]):
        return f"column {prompt_key}: {problem}"
    negative = row.get(NEGATIVE_PROMPT)
    if negative is not None and (problem := _prompt_problem(negative)):
        return f"column {NEGATIVE_PROMPT}: {problem}"
    wrong = next((name for name in MAPPINGS if not isinstance(row.get(name), Mapping | None)), None)
    return f"column {wrong}: must be a mapping, not {_kind(row[wrong])}" if wrong else None


def _seed_problem(seed: Any) -> str | None:
    """Why a value is no seed of a sample; None if it is one, or is not given."""
    if seed is None or (isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed <= SEED_RANGE):
        return None
    return f"column {SEED}: must be a whole number from 0 to 2^63 - 1, not {seed!r}"


def _prompt_problem(prompt: Any) -> str | None:
    """Why a value is no prompt: text, or messages with a role and a content each, as a list or its JSON."""
    if isinstance(prompt, str) and PYTHON_MESSAGES.match(prompt):
        return "it is the Python text of messages; write a list of messages, or its JSON"
    if isinstance(prompt, str):
        prompt = parse_messages(prompt)
        if prompt is None:
            return None
    if not isinstance(prompt, list):
        return f"a prompt must be text or a list of messages, not {_kind(prompt)}"
    if not prompt:
        return "a list of messages must not be empty"
    for number, message in enumerate(prompt):
        where = f"message {number} of the prompt"
        if not isinstance(message, Mapping):
            return f"{where} must be a mapping with role and content, not {_kind(message)}"
        if not isinstance(message.get("role"), str):
            return f"{where} must have a role, such as user"
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if not isinstance(content, str | list) or not all(isinstance(part, Mapping) for part in parts):
            return f"{where} must have a content: text, or a list of parts"
    return None


def _lacks_prompt(prompt_key: str, columns: Sequence[str]) -> str:
    listed = ", ".join(columns) or "none"
    where = "data.prompt_key (in a job: spec.algorithm.overrides)"
    return f"there is no column {prompt_key!r}; set {where} to one of: {listed}"


def _kind(value: Any) -> str:
    """Name of a value's JSON type."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", bytes: "bytes"}
    if isinstance(value, Mapping):
        return "a mapping"
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _text_rows(path: Path, prompt_key: str) -> Iterator[tuple[str, Any]]:
    """Rows of a file with a prompt on each line."""
    first = True
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            prompt = line.strip()
            if first and prompt.startswith("{") and _is_json(prompt):
                raise InvalidPromptFile(
                    f"{path}:{number}: is JSON, and a line of a {TEXT} file is a prompt: name it .jsonl"
                )
            if prompt:
                first = False
                yield f"{path}:{number}", {prompt_key: prompt}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a file with an object on each line, with one array of objects, or with one object."""
    parsed = 0
    # Lines end with \n, \r\n or \r; JSON allows other separators of lines, such as U+2028, in its text.
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if not parsed and line.lstrip().startswith("["):
                for index, row in enumerate(_parse(path.read_text(encoding="utf-8-sig"), path)):
                    yield f"{path}: row {index}", row
                return
            try:
                row = _parse(line.strip(), path, number)
            except InvalidPromptFile:
                if parsed or (value := _single_value(path)) is None:
                    raise
                yield str(path), value
                return
            parsed += 1
            yield f"{path}:{number}", row


def _single_value(path: Path) -> Any | None:
    """The value of a file that is one JSON value over several lines; None for other files."""
    try:
        return _parse(path.read_text(encoding="utf-8-sig"), path)
    except InvalidPromptFile:
        return None


def _parse(text: str, path: Path, line: int | None = None) -> Any:
    """Parse a file, or one line of it, as JSON."""
    source = str(path) if line is None else f"{path}:{line}"

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in values if names.count(name) > 1)
            raise InvalidPromptFile(f"{source}: {twice!r} is given twice")
        return values

    def whole_number(digits: str) -> int:
        if len(digits) > LONGEST_NUMBER or (number := int(digits)) not in WHOLE_NUMBERS:
            raise InvalidPromptFile(f"{source}: the number {digits[:40]} has more than 64 bits: write it as text")
        return number

    try:
        value = json.loads(text, object_pairs_hook=refuse_twice, parse_int=whole_number)
        if HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InvalidPromptFile(f"{source}: {half} is half of a character: it lacks the other half") from error
    except json.JSONDecodeError as error:
        where = f"{path}:{line or error.lineno}"
        raise InvalidPromptFile(f"{where}: not valid JSON: {error.msg}, column {error.colno}") from error
    except RecursionError as error:
        raise InvalidPromptFile(f"{source}: nested too deeply") from error


def _has_bytes(kind: Any) -> bool:
    """Whether a column has the content of images, which would be read as a whole."""
    from pyarrow import types

    parts = [kind.field(index).type for index in range(kind.num_fields)]
    return types.is_binary(kind) or types.is_large_binary(kind) or any(map(_has_bytes, parts))


def _parquet_rows(path: Path, prompt_key: str, also: Sequence[str]) -> Iterator[tuple[str, Any]]:
    from pyarrow import ArrowException, JsonType
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise InvalidPromptFile(f"{path}: column {twice!r} is given twice")
            if prompt_key not in names:
                raise InvalidPromptFile(f"{path}: {_lacks_prompt(prompt_key, names)}")
            for column in file.schema_arrow:
                if problem := _column_problem(column.type):
                    raise InvalidPromptFile(f"{path}: column {column.name}: {problem}")
            number = 0
            checked = [name for name in (prompt_key, NEGATIVE_PROMPT, *MAPPINGS, *also) if name in names]
            checked = [
                name for name in checked if name not in also or not _has_bytes(file.schema_arrow.field(name).type)
            ]
            # Hugging Face's datasets write values of several types as JSON, and read them from it.
            encoded = [name for name in checked if isinstance(file.schema_arrow.field(name).type, JsonType)]
            for batch in file.iter_batches(columns=checked):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row | {name: json.loads(row[name] or "null") for name in encoded}
                    number += 1
    except (ArrowException, OSError) as error:
        raise InvalidPromptFile(f"{path} cannot be read as a Parquet file: {error}") from error


def _column_problem(kind: DataType) -> str | None:
    """Why `datasets` cannot read a column of this type, which would stop a run after its start; None if it can."""
    from pyarrow import BaseExtensionType, JsonType, types

    if isinstance(kind, BaseExtensionType) and not isinstance(kind, JsonType):
        if kind.extension_name == "arrow.uuid":
            return _refused(kind, "text")
        # The types of `datasets` for arrays, which it reads itself.
        return None if kind.extension_name.startswith("datasets.") else _refused(kind, str(kind.storage_type))
    if types.is_map(kind):
        return _refused(kind, "a struct, or a text of JSON")
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return _refused(kind, f"decimal128({kind.precision}, {kind.scale})")
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return _refused(kind, f"list<{kind.value_type}>")
    parts = (_column_problem(kind.field(index).type) for index in range(kind.num_fields))
    return next((problem for problem in parts if problem), None)


def _refused(kind: DataType, instead: str) -> str:
    return f"the type {kind} is not supported; write it as {instead}"
