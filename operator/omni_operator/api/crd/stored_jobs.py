"""PURE: spec rules that a stored job may break, because it was created before a newer definition (CRD) added them.

The API server evaluates an object's rules on each change, so such a job could not even be suspended. Kubernetes has
`optionalOldSelf` for this, but only since version 1.30. So each rule of the spec becomes two:

- a new job must obey the rule. A job without a status is new: the API server drops the status of a job it creates;
- a spec that obeyed the rule must still obey it after a change.
"""

import re
from typing import Any

from omni_operator.api.base import VALIDATIONS

from .joined_rules import OLD, Rule, Schema

STORED = "has(self.status)"
_SELF = re.compile(r"\bself\b")
_NAMED = re.compile(r"\[self\.")


def spare_stored(schema: Schema) -> Schema:
    """The schema of jobs, with already joined rules, after each rule of the spec is split for creations and changes.

    The job's other rules are about its name, which never changes: they become rules for creations.
    """
    spec = schema["properties"]["spec"]
    rules = spec.get(VALIDATIONS, ())
    kept = {**spec, VALIDATIONS: [_for_changes(rule) if is_present(rule) else rule for rule in rules]}
    for_job = [_for_creations(rule, rule["rule"]) if is_present(rule) else rule for rule in schema.get(VALIDATIONS, ())]
    moved = [_for_creations(_moved(rule), _in_spec(rule["rule"])) for rule in rules if is_present(rule)]
    return {**schema, "properties": {**schema["properties"], "spec": kept}, VALIDATIONS: [*for_job, *moved]}


def is_present(rule: Rule) -> bool:
    """Whether a rule is about the present state, and not about a change."""
    return OLD not in rule["rule"]


def _for_changes(rule: Rule) -> dict[str, str]:
    return {**rule, "rule": f"({rule['rule']}) || !({_SELF.sub(OLD, rule['rule'])})"}


def _for_creations(rule: Rule, condition: str) -> dict[str, str]:
    return {**rule, "rule": f"{STORED} || ({condition})"}


def _in_spec(condition: str) -> str:
    """A condition of the spec as one of the job. What has names is looked up in the spec, which is looked up once."""
    return f"[self.spec].all(spec, {_SELF.sub('self.spec', _NAMED.sub('[spec.', condition))})"


def _moved(rule: Rule) -> dict[str, Any]:
    """A rule of the spec with its field path and messages rewritten for a rule of the job."""
    moved_rule = {**rule, "fieldPath": f".spec{rule.get('fieldPath', '')}"}
    return {
        name: _SELF.sub("self.spec", text) if name == "messageExpression" else text for name, text in moved_rule.items()
    }
