"""Entry of a job in the cache. The children of most of thousands of jobs are packed, because nothing reads them now.

A packed family is one block of memory. The small objects of an unpacked one are spread over the interpreter's arenas of
1 MiB, each of which stays as long as one object in it, so that deleted jobs gave little memory back.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from omni_operator.cluster.kinds import Key, Kind
from omni_operator.status.observed.observation import Evidence, ObservedPod, ObservedRayCluster, ObservedRayJob

from .job_summary import JobSummary
from .object_parser import Owner

AWAKE = 256  # jobs with the last events or passes, more than are created at the same time
SMALL = 4  # children: those of a job without pods; the cost of packing grows with them
Seen: TypeAlias = ObservedRayJob | ObservedRayCluster | ObservedPod | bytes


@dataclass(frozen=True, slots=True)
class Child:
    """A child of a job: a parsed value if decisions read it, its packed JSON if only its content is compared.

    Attributes:
        owner: its controller.
    """

    uid: str
    version: int
    owner: Owner | None
    seen: Seen

    def __reduce__(self) -> tuple[Any, ...]:
        """Shorter, and in half the time, than what `dataclass` does."""
        return Child, (self.uid, self.version, self.owner, self.seen)


@dataclass(slots=True)
class Family:
    """What is known of a job's children.

    Attributes:
        lineage: uids of the job's RayJobs and RayClusters, also of deleted ones, with the number of the attempt.
    """

    children: dict[tuple[Kind, str], Child] = field(default_factory=dict)
    lineage: dict[str, int] = field(default_factory=dict)
    evidence: tuple[tuple[int, Evidence], ...] = ()

    def same_owner(self, owner: Owner | None) -> Owner | None:
        """The owner, as the object that other children of the job have already."""
        return next((child.owner for child in self.children.values() if child.owner == owner), owner)


@dataclass(slots=True)
class CachedJob:
    """Cache entry of one job; `raw`, its packed JSON, and `summary` are None while only its children are known.

    Attributes:
        key: the one tuple and the two texts that all who keep something of the job refer to.
        shared: changes with each object that all attempts share; no two entries ever have the same number.
        family: read it through `Families`.
    """

    key: Key
    uid: str = ""
    version: int = 0
    raw: bytes | None = None
    summary: JobSummary | None = None
    shared: int = 0
    family: Family | bytes = field(default_factory=Family)


class Families:
    """The families of all jobs. Those of the last `most` jobs that were asked for, and large ones, are not packed."""

    def __init__(self, most: int = AWAKE) -> None:
        self._most = most
        self._awake: OrderedDict[Key, CachedJob] = OrderedDict()

    def of(self, job: CachedJob) -> Family:
        """The family of a job. Changes count until the family of another job is asked for."""
        family = job.family
        if isinstance(family, bytes):
            family = job.family = pickle.loads(family)
        self._awake[job.key] = job
        self._awake.move_to_end(job.key)
        if len(self._awake) > self._most:
            _, oldest = self._awake.popitem(last=False)
            if isinstance(oldest.family, Family) and len(oldest.family.children) <= SMALL:
                oldest.family = pickle.dumps(oldest.family, pickle.HIGHEST_PROTOCOL)
        return family

    def forget(self, job: CachedJob) -> None:
        """Drop a job that has left the cache."""
        self._awake.pop(job.key, None)
