"""PURE: types of Parquet columns that Hugging Face's `datasets` cannot read, which would stop a run after its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import DataType


def find_problem(kind: DataType) -> str | None:
    """Why a column of this type cannot be read, and what to write instead; None if it can."""
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
    parts = (find_problem(kind.field(index).type) for index in range(kind.num_fields))
    return next((problem for problem in parts if problem), None)


def _refused(kind: DataType, instead: str) -> str:
    return f"the type {kind} is not supported; write it as {instead}"
