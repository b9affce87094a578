"""Rows of prompt files as a data set of Hugging Face's `datasets`.

Its own reader of JSON is not used: it makes dates of texts such as `2024-01-01`, decides from the first 10 MB which
columns there are, and reads rows from its cache again if a file has the name and the time of an earlier one.
"""

import contextlib
import glob
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Json, Value, concatenate_datasets, load_dataset

from verl_omni.trainer.data import prompt_files

ROWS_AT_ONCE = 1 << 16  # of JSON: as Python's objects they take several times the memory of a table
FOLDER = "__folder__"  # column that `read` may add: relative paths of a row's images start from it


def read(files: Sequence[str], prompt_key: str = "prompt") -> Dataset:
    """The rows of files, in their order; a column that a row's file does not have is None.

    If the files are in several folders, the column `FOLDER` has the folder of each row's file.

    Args:
        prompt_key: column of the prompts of text files.

    Raises:
        InvalidPromptFile: a file of JSON cannot be used.
        ArrowException, DatasetsError, ValueError: a Parquet file cannot be read, or has other types than the rest.
    """
    parts: list[Dataset] = []
    several = len({Path(file).parent for file in files}) > 1
    for parquet, group in groupby(files, key=lambda file: Path(file).suffix == prompt_files.PARQUET):
        paths = list(group)
        if parquet:
            parts += [_parquet_table(path, with_folder=several) for path in paths]
        else:
            parts.append(_json_table(paths, prompt_key, with_folder=several))
    return concatenate_datasets(_aligned(parts))


def column(rows: Dataset, name: str) -> list[Any]:
    """The values of a column. Iterating over what `datasets` calls a column takes 200 times as long, indexing 5,000."""
    return list(rows[name][:])


def _aligned(parts: Sequence[Dataset]) -> list[Dataset]:
    """The parts, with columns of the same types: one with the values of all, otherwise JSON."""
    aligned = list(parts)
    for name in dict.fromkeys(name for part in parts for name in part.column_names):
        types = _types(parts, name)
        if _same(types):
            continue
        common = None if any(_has(kind, Json) for kind in types) else _common_type(types)
        with contextlib.suppress(TypeError):  # values that JSON does not have: joining the parts names the column
            aligned = [_converted(part, name, common) if name in part.column_names else part for part in aligned]
    return aligned


def _types(parts: Iterable[Dataset], name: str) -> list[Any]:
    """The types of a column in the parts that have values of it."""
    types = [part.features[name] for part in parts if name in part.column_names]
    return [kind for kind in types if kind != Value("null")]


def _same(types: Sequence[Any]) -> bool:
    return all(kind == types[0] for kind in types)


def _common_type(types: Iterable[Any]) -> Any | None:
    """A type with the values of all, such as a struct with the fields of each; None if there is none. PURE."""
    schemas = [Features({"": kind}).arrow_schema.remove_metadata() for kind in types]
    try:
        return Features.from_arrow_schema(pa.unify_schemas(schemas, promote_options="permissive"))[""]
    except pa.ArrowException:
        return None


def _converted(part: Dataset, name: str, common: Any | None) -> Dataset:
    """A part whose column `name` has a type; None: JSON, which may hold any values that JSON has."""
    if common is not None:
        return part.cast_column(name, common)
    converted = _json_column(name, column(part, name))
    other_columns = part.remove_columns(name)
    return concatenate_datasets([other_columns, converted], axis=1) if other_columns.column_names else converted


def _parquet_table(file: str, *, with_folder: bool) -> Dataset:
    """Rows of a Parquet file, from the cache of `datasets` if this very file is in it."""
    stat = Path(file).stat()
    # Part of the name in the cache, which otherwise has path and time of the change, as copies of other files can.
    content = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_ctime_ns}"
    rows = load_dataset("parquet", data_files=glob.escape(file), description=content)["train"]
    return rows.add_column(FOLDER, [str(Path(file).parent)] * len(rows)) if with_folder else rows


def _json_table(files: Iterable[str], prompt_key: str, *, with_folder: bool) -> Dataset:
    """Rows of files of JSON or text; values of several types in a column stay what they are."""
    rows = _json_rows(files, prompt_key, with_folder=with_folder)
    parts: list[Dataset] = []
    while some := list(islice(rows, ROWS_AT_ONCE)):
        names = dict.fromkeys(name for row in some for name in row)
        columns = [_column(name, [row.get(name) for row in some]) for name in names]
        parts += [concatenate_datasets(columns, axis=1)] if columns else []
    return _joined(parts) if parts else Dataset.from_dict({})


def _json_rows(files: Iterable[str], prompt_key: str, *, with_folder: bool) -> Iterator[Mapping[str, Any]]:
    for file in files:
        more = {FOLDER: str(Path(file).parent)} if with_folder else {}
        for location, row in prompt_files.rows(Path(file), prompt_key):
            if not isinstance(row, Mapping):
                raise prompt_files.InvalidPromptFile(f"{location}: {prompt_files.row_problem(row, '')}")
            yield {**row, **more}


def _joined(parts: Sequence[Dataset]) -> Dataset:
    """The rows of all parts; a column that has other types in another part is made again from all of its values."""
    names = list(dict.fromkeys(name for part in parts for name in part.column_names))
    several = [name for name in names if not _same(_types(parts, name))]
    if any(set(part.column_names) <= set(several) for part in parts):
        several = names  # what is left of a part would have no columns, and so no rows
    again = []
    for name in several:
        values = (column(part, name) if name in part.column_names else [None] * len(part) for part in parts)
        again.append(_column(name, list(chain.from_iterable(values))))
    kept = [part.select_columns([name for name in part.column_names if name not in several]) for part in parts]
    joined = [concatenate_datasets(kept)] if len(several) < len(names) else []
    return concatenate_datasets([*joined, *again], axis=1).select_columns(names)


def _column(name: str, values: list[Any]) -> Dataset:
    """A column; JSON if its values have several types, or mappings of other keys, which Arrow would add to each."""
    table = Dataset.from_dict({name: values}, on_mixed_types="use_json")
    feature = table.features[name]
    changed = _has(feature, Mapping) and list(map(_text, column(table, name))) != list(map(_text, values))
    return _json_column(name, values) if changed or _has(feature, Json) else table


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # unlike NaN itself, its text equals itself


def _has(feature: Any, kind: type) -> bool:
    parts = feature.values() if isinstance(feature, Mapping) else [getattr(feature, "feature", None)]
    return isinstance(feature, kind) or any(_has(part, kind) for part in parts if part is not None)


def _json_column(name: str, values: Iterable[Any]) -> Dataset:
    """A column of JSON. Hugging Face's `datasets` would take texts such as `1` and `[]` as JSON already."""
    texts = [None if value is None else json.dumps(value) for value in values]
    return Dataset(pa.table({name: pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))}))
