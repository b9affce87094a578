"""PURE: joins the rules of each object of a schema into one, which costs the API server less.

The API server evaluates every rule of a job at each write of it, also of its status. What costs there is not a rule's
logic: to look up a field copies the schema of the object around it, and to evaluate a rule at all takes as long as a
few of those. So the rules of an object become one, which looks up what several of them read only once.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from omni_operator.api.base import VALIDATIONS

Schema = dict[str, Any]
Rule = Mapping[str, str]
# A field that a rule reads, or whose presence it tests; no list of a loop, as in `self.scorers.all(`: the API server
# bounds the cost of a loop only if the path of its list begins with `self`.
PATH = re.compile(r"(?P<test>has\()?(?P<path>\bself(?:\.\w+)+)(?![\w.]*\()")
# The test for an optional field, after which a rule is evaluated for few jobs only.
TEST = re.compile(r"!has\([^)]*\) \|\| ")
OLD = "oldSelf"
# What a name costs, in copied fields: a list of one value, and a loop over it.
NAME_COSTS = 20
# A joined rule has each condition twice, the second time for its message; of a longer rule that would be too much.
LONGEST = 1000


def join_rules(schema: Schema, at: str = "") -> Schema:
    """The schema with the rules of each object joined into one, except transition rules and very long rules.

    A joined rule accepts what all of its rules accept. Its message joins the messages of all broken rules, each with
    the path of its field.

    Args:
        at: path of the schema's object, as `spec.rollout`.
    """
    joined = dict(schema)
    if "properties" in joined:
        joined["properties"] = {
            name: join_rules(inner, f"{at}.{name}".strip(".")) for name, inner in joined["properties"].items()
        }
    for name in ("items", "additionalProperties"):
        if isinstance(joined.get(name), dict):
            joined[name] = join_rules(joined[name], f"{at}[]" if name == "items" else f"{at}.*")
    rules = joined.get(VALIDATIONS, ())
    # A rule about a change is not evaluated at a creation: it cannot be joined with others.
    parts = [rule for rule in rules if OLD not in rule["rule"] and len(rule["rule"]) <= LONGEST]
    if len(parts) > 1:
        joined[VALIDATIONS] = [_joined(parts, schema, at), *(rule for rule in rules if rule not in parts)]
    return joined


def _joined(rules: Sequence[Rule], schema: Schema, at: str) -> Rule:
    # By concatenation, because the API server cannot bound the cost of `join`.
    # CEL strings in double quotes have the same syntax as JSON strings.
    texts = [(rule["rule"], json.dumps(_text(rule, at), ensure_ascii=False)) for rule in rules]
    message = " + ".join(f"(({rule}) ? '' : {text})" for rule, text in texts)
    return {
        "rule": _with_names([rule["rule"] for rule in rules], schema),
        # For the case that the expression fails, as the rule then does.
        "message": f"rules of {at or 'the job'} are broken; `drl validate` names them",
        "messageExpression": message,
    }


def _text(rule: Rule, at: str) -> str:
    """The message as a sentence that begins with the path of the field, and the space that separates it from others."""
    field = rule.get("fieldPath", "")
    # Only the API server knows the whole path of a list item or a map value; it shows the path of the object.
    path = field.strip(".") if {"[", "*"} & set(at) else f"{at}{field}"
    return f"{path}: {rule['message']}. " if field else f"{rule['message']}. "


def _with_names(rules: Sequence[str], schema: Schema) -> str:
    """All of the rules, with a name for each field that they look up several times and every object has."""
    parts = [_split(rule) for rule in rules]
    counted = Counter(path for first, _ in parts for match in PATH.finditer(first) for path in _reads(match))
    # The outer fields first: the others are looked up in them.
    names = {
        path: "_".join(path.split(".")[1:])
        for path in sorted(counted, key=lambda path: path.count("."))
        if (counted[path] - 1) * _copied_fields(path, schema) > NAME_COSTS
    }
    expression = " && ".join(
        f"({PATH.sub(lambda match: _renamed(match, names), first)}{remainder})" for first, remainder in parts
    )
    for path, name in reversed(names.items()):
        around, _, field = path.rpartition(".")
        expression = f"[{names.get(around, around)}.{field}].all({name}, {expression})"
    return expression


def _split(rule: str) -> tuple[str, str]:
    """What is evaluated of a rule for most jobs, and the rest.

    The rest has no names, also because the API server bounds the cost of text only if its path begins with `self`.
    """
    test = TEST.search(rule)
    return (rule[: test.end()], rule[test.end() :]) if test else (rule, "")


def _reads(found: re.Match[str]) -> list[str]:
    """The fields that a path leads through, the outermost first, and its last one unless its presence is tested."""
    steps = found["path"].split(".")
    return [".".join(steps[:count]) for count in range(2, len(steps) + (found["test"] is None))]


def _renamed(found: re.Match[str], names: Mapping[str, str]) -> str:
    """What was found, with the name of the last field on the way that has one."""
    for path in reversed(_reads(found)):
        if path in names:
            return f"{found['test'] or ''}{names[path]}{found['path'].removeprefix(path)}"
    return found[0]


def _copied_fields(path: str, schema: Schema) -> int:
    """The fields of schemas that the last step of a path copies; 0 if there are objects without that field."""
    around = schema
    for name in path.split(".")[1:]:
        around = schema
        schema = schema.get("properties", {}).get(name, {})
        if name not in around.get("required", ()) and "default" not in schema:
            return 0
    return 2 * len(around["properties"]) + len(schema.get("properties", ()))
