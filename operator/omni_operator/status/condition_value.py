"""PURE: the value of a condition: status, reason and message."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from omni_operator.api.status import Condition

# Reasons of conditions that later passes read.
CHECKPOINT_REQUESTED = "CheckpointRequested"
CHANGED_BY_OTHERS = "ChangedByOthers"
NEXT_ATTEMPT = "NextAttempt"
ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class ConditionValue:
    """Status, reason and message of a condition, without times."""

    status: ConditionStatus
    reason: str
    message: str = ""


def value_of(condition: Condition) -> ConditionValue:
    """The value of a condition that was written before."""
    return ConditionValue(condition.status, condition.reason, condition.message)


Table = Mapping[str, ConditionValue]
