"""The job of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.status import Status
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.kinds import Body, Key
from omni_operator.reconcile.corrections import Change
from omni_operator.reconcile.pass_memory import JobMemory
from omni_operator.reconcile.spec_cache import InvalidSpec, ValidSpec
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import Refusal


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
    def standing_refusal(self) -> Refusal | None:
        """The last refused request, while the pause after it lasts and the spec is unchanged."""
        return self.memory.refused.standing(self.facts.generation, self.now)

    @property
    def changed_by_others(self) -> str:
        """What others change all the time, for a condition; empty if they change nothing."""
        return self.memory.corrections.changed_by_others(self.now, self.facts.generation)

    def add_refusal(self, error: ClusterError) -> None:
        """Remember a refused request: others follow after a pause."""
        self.memory.refused.add(error, self.facts.generation, self.now)

    def pause_end(self, change: Change) -> datetime | None:
        """When the next correction of this kind is allowed; None: now."""
        return self.memory.corrections.of(change).pause_end(self.now, self.facts.generation)

    def correction_times(self) -> Iterator[datetime]:
        """When a pause between corrections ends, and when corrections in a row are forgotten."""
        return self.memory.corrections.times(self.now, self.facts.generation)
