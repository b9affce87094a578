"""YAML of rendered objects: readers of YAML 1.1 and 1.2 read what was written."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from omni_operator.api.files.yaml_document import Document
from omni_operator.plan import dump_yaml

# Texts that YAML 1.1 or 1.2 would read as something else without quotes, or with other blanks and line ends.
WORDS = (
    *("y", "N", "yes", "off", "null", "~", "=", "<<", "1e5", "0o17", "017", "08", "1_000", "1:30", ".5", "+.5e3"),
    *(".inf", "2026-01-01", "#", "- a", "a: b", " a", "a ", "", "\n", "a\n", "a\n\n", " a\nb", "a \nb", "a\r\nb"),
    *("a\tb\n", "a\u2028b\nc", "\ufeff"),
)
TEXTS = st.sampled_from(WORDS) | st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
@example({word: word for word in WORDS})
def test_it_is_read_as_it_was_written(body: dict[str, Any]) -> None:
    text = dump_yaml(body)
    assert YAML(typ="safe", pure=True).load(text) == body
    assert yaml.safe_load(text) == body


def test_texts_are_those_that_kubectl_reads() -> None:
    body = {word: word for word in WORDS}
    assert Document.parse(dump_yaml(body), "objects.yaml").plain() == body
    assert dump_yaml({"a": "0X1f", "b": "1e5_0"}) == "a: '0X1f'\nb: '1e5_0'\n", "numbers to kubectl alone"


def test_repeated_parts_are_written_in_full_and_texts_of_several_lines_as_blocks() -> None:
    part = {"image": "rollout:2.60.0"}
    assert dump_yaml({"files": "a\nb\n", "b": part, "a": [part]}) == (
        "files: |\n  a\n  b\nb:\n  image: rollout:2.60.0\na:\n- image: rollout:2.60.0\n"
    )


@pytest.mark.parametrize(("count", "starts"), [(1, 0), (2, 2)])
def test_several_documents_are_separated(count: int, starts: int) -> None:
    bodies = [{"a": number} for number in range(count)]
    text = dump_yaml(*bodies)
    assert text.splitlines().count("---") == starts
    assert list(YAML(typ="safe", pure=True).load_all(text)) == bodies
