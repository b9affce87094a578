"""PURE: the condition `Updated`: whether the running attempt is as the current spec asks."""

from __future__ import annotations

from omni_operator.api.status import Status

from .conditions import ConditionValue, false_because, true_because
from .job_facts import JobFacts
from .observation import Observation
from .rolling import ROLLING_REASONS, review_rolling
from .situation import CHANGED_BY_OTHERS

UNCOMPARED = (CHANGED_BY_OTHERS, "InvalidSpec")
NEXT_ATTEMPT = false_because(
    "NextAttempt", "the spec changed; the running attempt keeps the old spec, the next one gets the new"
)


def review_update(
    facts: JobFacts, status: Status, observed: Observation, attempt: int, *, outdated: bool, others: str
) -> ConditionValue:
    """Whether the attempt matches the current spec; for an unchanged spec, the previous result.

    Rollout pods may be replaced in the running attempt; then it counts what they have.

    Args:
        outdated: whether the attempt differs from the current spec in what cannot change while it runs; not read where
            `needs_comparison` says that it is not needed.
        others: what other programs change again after each correction; empty if nothing.
    """
    if facts.held:
        rest = NEXT_ATTEMPT
    else:
        rest = _review_rest(status, attempt, facts.generation, outdated=outdated)
        rest = rest if rest.status == "False" else review_rolling(facts, observed, attempt) or rest
    if not others:
        return rest
    return false_because(CHANGED_BY_OTHERS, f"{others}; {rest.message}" if rest.message else others)


def needs_comparison(status: Status, generation: int) -> bool:
    """Whether the condition that was written last says nothing of how the attempt compares with the current spec.

    A spec that was invalid is valid again, with the same generation, when the operator or its policy has changed.
    """
    before = status.condition("Updated")
    return status.observed_generation != generation or (before is not None and before.reason in UNCOMPARED)


def _review_rest(status: Status, attempt: int, generation: int, *, outdated: bool) -> ConditionValue:
    """Whether the attempt has what of the current spec cannot change while it runs."""
    before = status.condition("Updated")
    if before and attempt == status.attempts and not needs_comparison(status, generation):
        if before.reason in ROLLING_REASONS:
            return true_because("AsRequested")
        return ConditionValue(before.status, before.reason, before.message)
    return NEXT_ATTEMPT if outdated else true_because("AsRequested")
