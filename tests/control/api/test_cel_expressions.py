"""Rules of a job are Python expressions, from which the CEL of the API server is made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from omni_operator.api.cel_expressions import holds, to_cel


@pytest.mark.parametrize(
    ("expression", "cel"),
    [
        ("self.a_b is None or self.c.d_e is not None", "!has(self.aB) || has(self.c.dE)"),
        ("self.a and not self.b.startswith('~')", "self.a && !self.b.startsWith('~')"),
        ("self.a or (self.b and not (self.c or self.d))", "self.a || (self.b && !(self.c || self.d))"),
        ("(self.a * self.b) % (self.c + 2) == 0", "(self.a * self.b) % (self.c + 2) == 0"),
        ("(self.a if self.b is not None else 1.0) > 0.5", "(has(self.b) ? self.a : 1.0) > 0.5"),
        ("len(self.a_b) > 1 and contains(self.c, '://')", "size(self.aB) > 1 && self.c.contains('://')"),
        (
            "any(matches(path, '^a.b/') for path in self.a_b)",
            "self.aB.exists(path, path.matches(r'^a.b/'))",
        ),
        ("all(each.d_e == 1 for each in self.a)", "self.a.all(each, each.dE == 1)"),
        (
            "self.a not in ['x', 'y'] or self.a in ['z'] or self.b == True",
            "!(self.a in ['x', 'y']) || self.a in ['z'] || self.b == true",
        ),
    ],
)
def test_an_expression_and_its_cel(expression: str, cel: str) -> None:
    assert to_cel(expression) == cel


@pytest.mark.parametrize(
    "expression",
    [
        "max(self.a) > 1",
        "any(x for x in self.a if x)",
        "matches(self.a, self.b)",
        "self.a < self.b < 3",
        "other.a",
        "self.a - 1",
        "self.a[0]",
    ],
)
def test_what_has_no_cel_here_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="not an expression of a rule"):
        to_cel(expression)


def test_an_expression_is_evaluated_for_a_model_without_builtins() -> None:
    model = SimpleNamespace(size=3, end=None)
    assert holds("self.end is None or self.size <= self.end", model)
    assert not holds("self.size % 2 == 0", model)
    assert holds("any(each < self.size for each in item) and matches('ab', 'b$')", model, [9, 2])
    with pytest.raises(NameError):
        holds("max(self.size)", model)
