"""JSON that is nested too deeply: what is around it is read."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_operator.cluster.nested_json import DEPTH, cut_text, load_json

TEXTS = st.text(alphabet='a"\\[]{}:,é\n', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
LEVELS = 3000


@given(before=VALUES, after=VALUES, name=TEXTS, pretty=st.sampled_from([None, 1]))
def test_the_values_around_a_deep_one_are_read(before: Any, after: Any, name: str, pretty: int | None) -> None:
    key = json.dumps(name)
    first = json.dumps(before, indent=pretty)
    last = json.dumps(after, indent=pretty)
    deep = f"[{{{key}:" * DEPTH + '[{"b":' * LEVELS + "1" + "}]" * (DEPTH + LEVELS)
    text = f'{{"items": [{first}, {deep}, {last}], "after": {last}}}'
    parsed = load_json(text.encode())
    assert (parsed["items"][0], parsed["items"][2], parsed["after"]) == (before, after, after)
    levels = 2
    inner = parsed["items"][1]
    while not isinstance(inner, str):
        inner = inner[0] if isinstance(inner, list) else inner[name]
        levels = levels + 1
    assert (levels, inner) == (DEPTH, "(nested too deeply)")


@pytest.mark.parametrize(("levels", "cut"), [(DEPTH, False), (DEPTH + 1, True), (10_000, True)])
def test_the_levels_that_are_kept_do_not_depend_on_what_python_could_parse(levels: int, cut: bool) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        text = b"[" * levels + b"]" * levels
        assert ("(nested too deeply)" in json.dumps(load_json(text))) is cut
        assert json.loads(cut_text(text)) == load_json(text)
    finally:
        sys.setrecursionlimit(before)


@given(VALUES, st.integers(0, 3))
def test_brackets_in_texts_are_no_levels(value: Any, escapes: int) -> None:
    text = "[{" * DEPTH + "\\" * escapes + '"'
    assert load_json(json.dumps({text: [value, text]}).encode()) == {text: [value, text]}


@pytest.mark.parametrize("end", ["", "]" * 10, "]" * 200_000, '"'])
def test_deep_text_that_is_not_json_is_an_error_of_its_value(end: str) -> None:
    with pytest.raises(ValueError, match=r"line 1|Expecting|Extra|Unterminated"):
        load_json(("[" * 100_000 + end).encode())
