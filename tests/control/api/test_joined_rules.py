"""Tests of the joined rules: each rule is in the CRD, and few are evaluated for a job."""

import copy
import re
from collections.abc import Iterator
from typing import Any

from omni_operator.api.base import VALIDATIONS
from omni_operator.api.crd import definition
from omni_operator.api.crd.joined_rules import LONGEST, OLD, join_rules
from omni_operator.api.crd.stored_jobs import STORED, is_present

SCHEMA = definition.schema()
JOINED = definition.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
TWO = {"rule": "self.engine.size == 1", "message": "is not 1", "fieldPath": ".engine"}


def nodes(node: dict[str, Any], at: str = "", always: bool = True) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every object of a schema with its path, and whether each job has it."""
    yield at, node, always
    for name, inner in node.get("properties", {}).items():
        is_given = always and (name in node.get("required", ()) or "default" in inner)
        yield from nodes(inner, f"{at}.{name}", is_given)
    for name, step in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(node.get(name), dict):
            yield from nodes(node[name], at + step, always=False)


def engine(**field: Any) -> dict[str, Any]:
    """An object with an object `engine`, of many fields, and two rules that read one of them."""
    sizes = {f"size{number}": {"type": "integer"} for number in range(20)}
    inner = {"type": "object", "properties": {"size": {"type": "integer", "default": 1}, **sizes}, **field}
    rules = [TWO, {"rule": "!has(self.engine.size1) || self.engine.size < 9", "message": "is big"}]
    return {"type": "object", "properties": {"engine": inner}, VALIDATIONS: rules}


def test_every_rule_of_the_models_is_in_the_crd_with_its_message_and_the_path_of_its_field() -> None:
    joined = {at: node.get(VALIDATIONS, []) for at, node, _ in nodes(JOINED)}
    for at, node, _ in nodes(SCHEMA):
        texts = [rule.get("messageExpression", "") + rule["message"] for rule in joined[at]]
        for rule in node.get(VALIDATIONS, []):
            assert [text for text in texts if rule["message"] in text], (at, rule)
            alone = [in_crd for in_crd in joined[at] if in_crd == rule]
            condition = f"({rule['rule']}) ? ''"
            path = at + rule.get("fieldPath", "") + ": "
            assert alone or [text for text in texts if condition in text], (at, rule)
            assert alone or "fieldPath" not in rule or "[" in at or path.removeprefix(".") in "".join(texts), at


def test_an_object_has_at_most_one_rule_about_its_present_state_that_is_not_very_long() -> None:
    for at, node, _ in nodes(JOINED):
        rules = [rule for rule in node.get(VALIDATIONS, []) if OLD not in rule["rule"]]
        assert len([rule for rule in rules if len(rule.get("messageExpression", rule["rule"])) <= LONGEST]) <= 1, at


def test_few_rules_are_evaluated_for_every_job() -> None:
    """Each rule costs the API server time at every write of a job or its status (docs/contribute/evidence.md)."""

    def rules(schema: dict[str, Any]) -> int:
        return sum(len(node.get(VALIDATIONS, ())) for _, node, always in nodes(schema) if always)

    assert rules(SCHEMA) > 60
    assert rules(JOINED) <= 19


def test_rules_about_changes_and_very_long_ones_stay_alone() -> None:
    """At a creation the API server evaluates none that reads the old object."""
    change = {"rule": "self == oldSelf", "message": "a"}
    long = {"rule": f"self.x == '{'x' * LONGEST}'", "message": "b"}
    schema = engine(default={})
    schema[VALIDATIONS] = [change, *schema[VALIDATIONS], long]
    before = copy.deepcopy(schema)
    joined, *others = join_rules(schema)[VALIDATIONS]
    assert others == [change, long]
    assert "messageExpression" in joined
    assert schema == before


def test_a_rule_of_the_spec_is_one_of_creations_and_one_of_changes_that_spares_who_broke_it_before() -> None:
    """A job that was stored before there was the rule can then be changed, suspended above all."""
    of_spec = JOINED["properties"]["spec"][VALIDATIONS]
    of_job = JOINED[VALIDATIONS]
    before = join_rules(SCHEMA)["properties"]["spec"][VALIDATIONS]
    assert len(before) == 1 and is_present(before[0])
    condition = before[0]["rule"]
    assert [rule["rule"] for rule in of_spec] == [f"({condition}) || !({condition.replace('self.', 'oldSelf.')})"]
    created = [rule for rule in of_job if is_present(rule)]
    assert all(rule["rule"].startswith(f"{STORED} || (") for rule in created), "a new job has no status"
    (moved,) = (rule for rule in created if rule.get("fieldPath") == ".spec")
    texts = [text for text in moved["messageExpression"].split('"')[1::2] if text]
    assert texts == [text for text in of_spec[0]["messageExpression"].split('"')[1::2] if text]
    assert not re.search(r"\bself\.(?!(spec|status)\b)", moved["rule"] + moved["messageExpression"])
    assert "([self.spec].all(spec, " in moved["rule"] and "[spec.storage].all(storage, " in moved["rule"]
