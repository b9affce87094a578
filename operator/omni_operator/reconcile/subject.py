"""The job of a pass."""

from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.status import Status
from omni_operator.cluster.kinds import Body, Key
from omni_operator.reconcile.pass_memory import JobMemory
from omni_operator.reconcile.spec_cache import InvalidSpec, ValidSpec
from omni_operator.status.observed.job_facts import JobFacts


@dataclass(frozen=True, slots=True)
class Subject:
    """The job of a pass, as it was when the pass began.

    Attributes:
        status: the last written status.
        memory: what earlier passes over the job remember.
        now: when the pass began.
    """

    key: Key
    body: Body
    spec: ValidSpec | InvalidSpec
    facts: JobFacts
    status: Status
    memory: JobMemory
    now: datetime

    @property
    def refused_spec(self) -> str:
        """Why the operator's settings refuse the spec; empty for a job that has ended."""
        return "" if self.status.finished else self.spec.refused or ""

    @property
    def changed_by_others(self) -> str:
        """What others change all the time, for a condition; empty if they change nothing."""
        return self.memory.corrections.changed_by_others(self.now)
