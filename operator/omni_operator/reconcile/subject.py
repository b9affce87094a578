"""The job of a pass, and the result of the pass."""

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


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Result of a pass.

    Attributes:
        wake: time of the next pass, after this one unless it wrote the status; None: the next resync.
        result: for metrics: `ok`, `wrote`, `refused`, `conflict` or `gone`.
    """

    wake: datetime | None = None
    result: str = "ok"

    @property
    def gone(self) -> bool:
        """Whether the job does not exist any more."""
        return self.result == "gone"
