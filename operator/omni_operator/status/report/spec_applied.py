"""PURE: the condition `Updated`: whether the running attempt is as the current spec asks."""

from __future__ import annotations

from collections.abc import Callable

from omni_operator.api.status import Status
from omni_operator.status.condition_value import ConditionValue, false_because, true_because
from omni_operator.status.decisions.rolling import has_other_templates, review_rolling
from omni_operator.status.decisions.situation import CHANGED_BY_OTHERS
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Observation, ObservedRayJob

UNCOMPARED = (CHANGED_BY_OTHERS, "InvalidSpec")
NEXT_ATTEMPT = false_because(
    "NextAttempt", "the spec changed; the running attempt keeps the old spec, the next one gets the new"
)


def is_outdated(
    facts: JobFacts, status: Status, observed: Observation, makes: Callable[[ObservedRayJob], bool]
) -> bool:
    """Whether the newest attempt differs from the spec in fields that cannot change while it runs.

    Before the trainer runs, no pods are replaced, so nothing can change. Once it runs, the previous result holds until
    the spec changes.

    Args:
        makes: whether the spec gives the same attempt, except for fields that may change while it runs.
    """
    rayjob = observed.rayjob(observed.newest)
    updated = status.condition("Updated")
    if rayjob is None or (rayjob.runs and rayjob.attempt == status.attempts and not needs_comparison(status, facts)):
        return updated is not None and updated.reason == NEXT_ATTEMPT.reason
    waits = not rayjob.runs and (facts.held or has_other_templates(facts, observed))
    return bool(rayjob.digest) and (waits or not makes(rayjob))


def review_update(facts: JobFacts, observed: Observation, attempt: int, others: str) -> ConditionValue:
    """Whether the attempt is as the current spec asks. Where pods are replaced while it runs, it counts what they have.

    Args:
        others: what other programs change again after each correction; empty if nothing.
    """
    rest = NEXT_ATTEMPT
    if not (facts.held or facts.outdated):
        rest = review_rolling(facts, observed, attempt) or true_because("AsRequested")
    if not others:
        return rest
    return false_because(CHANGED_BY_OTHERS, f"{others}; {rest.message}" if rest.message else others)


def needs_comparison(status: Status, facts: JobFacts) -> bool:
    """Whether the condition that was written last says nothing of how the attempt compares with the current spec.

    A spec that was invalid is valid again, with the same generation, when the operator or its policy has changed.
    """
    before = status.condition("Updated")
    return status.observed_generation != facts.generation or (before is not None and before.reason in UNCOMPARED)
