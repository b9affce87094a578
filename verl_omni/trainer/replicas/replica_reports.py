"""Reports of standalone replicas that join, fail and leave: events of the run folder, and metrics."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from verl_omni.utils.metrics import exported_metrics as exported
from verl_omni.utils.metrics.metrics_writer import MetricsWriter

QUEUED_SAMPLES = "rollout/queued_samples"
REPLICA_VERSIONS = "rollout/replica_versions"
QUEUED_REQUESTS = "reward/queued_requests"
JUDGE_VERSIONS = "reward/replica_versions"


@dataclass(frozen=True, slots=True)
class JoinTimes:
    """How long a replica took to join.

    Attributes:
        place_s: seconds until a node had room for it.
        start_s: seconds from then until its engine was ready.
        sync_s: seconds from then until it had the weights; 0 for a judge, which gets none.
    """

    place_s: float
    start_s: float
    sync_s: float = 0.0

    def describe(self) -> str:
        """Place and start, for people."""
        return f"{self.place_s:.1f} s for a place, {self.start_s:.1f} s to start"

    def fields(self) -> dict[str, float]:
        """Place and start, for programs."""
        return {"place_s": round(self.place_s, 3), "start_s": round(self.start_s, 3)}


class ReplicaReports:
    """Hears of replicas, and does nothing. Methods are called from several threads, but never by two at once."""

    def joined(self, rank: int, version: int, times: JoinTimes) -> None:
        """A replica that was added has this version, and serves."""

    def leaving(self, rank: int) -> None:
        """A replica gets no more requests, because its node is being removed."""

    def drained(self, rank: int) -> None:
        """A replica that left has finished its samples, and is stopped."""

    def lost(self, message: str) -> None:
        """A replica failed or was lost; the message names it and the reason."""

    def start_failed(self, message: str) -> None:
        """A replica could not be started; the start is retried."""

    def waiting(self, serving: int, least: int) -> None:
        """The run waits for replicas."""

    def serving(self, count: int) -> None:
        """Report how many replicas have the current version."""

    def queued(self, number: int) -> None:
        """Report how many samples are not generated yet, or how many questions are unanswered."""

    def versions(self, found: Mapping[str, int]) -> None:
        """All replicas of these hosts serve, with at least these versions."""


@dataclass
class FolderReports(ReplicaReports):
    """Reports in the run folder, which the operator gets too, and in the exported metrics.

    Attributes:
        note: gives the operator a number, or a mapping, with the next report.
    """

    folder: Any  # RunFolder
    writer: MetricsWriter
    note: Callable[[str, int | Mapping[str, int]], None] = lambda name, value: None

    @override
    def lost(self, message: str) -> None:
        self.folder.event("warning", reason="ReplicaRemoved", message=message)

    @override
    def start_failed(self, message: str) -> None:
        self.folder.event("warning", reason="ReplicaNotStarted", message=message)


@dataclass
class RunReports(FolderReports):
    """Reports of rollout replicas."""

    _waits: bool = False

    @override
    def joined(self, rank: int, version: int, times: JoinTimes) -> None:
        self._waits = False
        self.writer.add(exported.REPLICAS_ADDED, 1)
        text = f"replica {rank} joined with version {version}: {times.describe()}, {times.sync_s:.1f} s for the weights"
        self.folder.event("phase", text=text, **times.fields(), sync_s=round(times.sync_s, 3))

    @override
    def leaving(self, rank: int) -> None:
        self.writer.add(exported.REPLICAS_REMOVED, 1)
        self.folder.event("phase", text=f"replica {rank} gets no more requests: its node is being removed")

    @override
    def drained(self, rank: int) -> None:
        self.folder.event("phase", text=f"replica {rank} has finished its samples, and is stopped")

    @override
    def lost(self, message: str) -> None:
        self.writer.add(exported.REPLICAS_LOST, 1)
        super().lost(message)

    @override
    def waiting(self, serving: int, least: int) -> None:
        if not self._waits:  # once, not at every look
            text = f"waiting for rollout replicas: {serving} serve, rollout.min_replicas is {least}"
            self.folder.event("phase", text=text)
        self._waits = True

    @override
    def serving(self, count: int) -> None:
        self.writer.set(exported.REPLICAS, count)

    @override
    def queued(self, number: int) -> None:
        self.writer.set(exported.QUEUED, number)
        self.note(QUEUED_SAMPLES, number)

    @override
    def versions(self, found: Mapping[str, int]) -> None:
        self.note(REPLICA_VERSIONS, dict(found))


class JudgeReports(FolderReports):
    """Reports of a judge's replicas."""

    @override
    def joined(self, rank: int, version: int, times: JoinTimes) -> None:
        self.folder.event("phase", text=f"judge replica {rank} joined: {times.describe()}", **times.fields())

    @override
    def leaving(self, rank: int) -> None:
        self.folder.event("phase", text=f"judge replica {rank} gets no more questions: its node is being removed")

    @override
    def drained(self, rank: int) -> None:
        self.folder.event("phase", text=f"judge replica {rank} has answered its questions, and is stopped")

    @override
    def queued(self, number: int) -> None:
        self.writer.set(exported.JUDGE_QUEUED, number)
        self.note(QUEUED_REQUESTS, number)

    @override
    def versions(self, found: Mapping[str, int]) -> None:
        self.note(JUDGE_VERSIONS, dict(found))


def versions_of_hosts(held: Iterable[tuple[str, int]], places: Mapping[str, int]) -> dict[str, int]:
    """Lowest version that serves on each host; a host with a place whose replica does not serve is left out. PURE.

    Args:
        held: address (HOST:PORT, in a cluster the pod's) and version of each replica that serves.
        places: number of replicas that each host has room for; 1 for a host that is not in it.
    """
    by_host: dict[str, list[int]] = {}
    for address, version in held:
        host = address.rpartition(":")[0].strip("[]")  # IPv6 addresses without their brackets
        by_host.setdefault(host, []).append(version)
    return {host: min(versions) for host, versions in by_host.items() if len(versions) >= places.get(host, 1)}


def report_pools(
    stack: Any, folder: Any, note: Callable[[str, int | Mapping[str, int]], None], poll_requests: Callable[[], None]
) -> None:
    """Start the pools of a run, whose replicas are reported in its folder.

    Args:
        stack: `pool` and `judges` of a `Stack`.
        note: see `RunReports`.
        poll_requests: called while the run waits for rollout replicas.
    """
    if stack.pool is not None:
        stack.pool.updates.reports = RunReports(folder, MetricsWriter(), note)
        stack.pool.updates.waited = poll_requests
        stack.pool.start()
    if stack.judges is not None:
        stack.judges.updates.reports = JudgeReports(folder, MetricsWriter(), note)
        stack.judges.start()
