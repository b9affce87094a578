"""Rows of JSON are the same, whether they are read in one part or in several."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.trainer.data import prompt_tables

# Numbers that all types of a column hold exactly.
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, -1.25, 2.0]) | st.text("ab", max_size=2)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(st.fixed_dictionaries({"prompt": VALUES}, optional={"x": VALUES}), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=30)
@given(ROWS)
def test_parts_of_a_file_are_joined_to_what_the_whole_file_is(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    file = tmp_path_factory.mktemp("rows") / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    in_one_part = prompt_tables.read([str(file)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_tables, "ROWS_AT_ONCE", 2)
        in_parts = prompt_tables.read([str(file)])
    assert [*in_parts] == [*in_one_part]
    assert in_parts.column_names == in_one_part.column_names
