"""Rules of a job are Python expressions, from which the CEL of the API server is made."""

from types import SimpleNamespace

import pytest

from omni_operator.api.cel_expressions import holds, to_cel


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
