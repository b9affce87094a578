"""PURE: types of the table of reasons."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from omni_operator.api.spec.policy import FailureReason as NamedFailureReason

# Reasons of failed attempts: the reasons that `spec.failurePolicy` may name, and one that it may not.
FailureReason: TypeAlias = NamedFailureReason | Literal["ChildDeleted"]


class Action(str, Enum):
    """What the operator does after a failed attempt."""

    FAIL = "Fail"
    RETRY = "Retry"
    RETRY_IGNORE_LIMIT = "RetryIgnoreLimit"


@dataclass(frozen=True, slots=True)
class Reason:
    """A row of the table of reasons.

    Attributes:
        shown: `Type=Status` of conditions, `failure` (`status.failures`), `event`, `warning` (`status.warnings`).
        look: a command; NAME is the name of the job.
        action: what to do; empty if nothing is wrong.
    """

    shown: tuple[str, ...]
    meaning: str
    look: str = ""
    action: str = ""

    @property
    def normal(self) -> bool:
        """Whether nothing is wrong."""
        return not self.action
