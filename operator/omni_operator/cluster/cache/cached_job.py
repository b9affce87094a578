"""Entry of a job in the cache: the job object, its children, and what is remembered of deleted ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from omni_operator.cluster.kinds import Body, Key, Kind
from omni_operator.status.observed.observation import Evidence, ObservedPod, ObservedRayCluster, ObservedRayJob

from .job_summary import JobSummary
from .object_parser import Owner

Seen: TypeAlias = ObservedRayJob | ObservedRayCluster | ObservedPod | Body


@dataclass(frozen=True, slots=True)
class Child:
    """A child of a job: a parsed value if decisions read it, the object if only its content is compared.

    Attributes:
        owner: its controller.
    """

    uid: str
    version: int
    owner: Owner | None
    seen: Seen


@dataclass(slots=True)
class CachedJob:
    """Cache entry of one job; `body` and `summary` are None while only its children are known.

    Attributes:
        body: the fields of the job that passes read. It is never changed: an event replaces it.
        shared: changes with each object that all attempts share; no two entries ever have the same number.
        lineage: uids of the job's RayJobs and RayClusters, also of deleted ones, with the number of the attempt.
    """

    key: Key
    uid: str = ""
    version: int = 0
    body: Body | None = None
    summary: JobSummary | None = None
    shared: int = 0
    children: dict[tuple[Kind, str], Child] = field(default_factory=dict)
    lineage: dict[str, int] = field(default_factory=dict)
    evidence: tuple[tuple[int, Evidence], ...] = ()
