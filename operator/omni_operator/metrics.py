"""Prometheus metrics of the operator and of its jobs. A page is rendered in a thread, from values that do not change.

Cardinality is bounded: label values come from closed lists, and at most `shown` jobs have their own series, running
jobs first; another metric counts the rest.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Counted
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from pydantic import ValidationError
from typing_extensions import override

from omni_operator.api.status import CONDITION_TYPES, JobState, Status
from omni_operator.cluster.job_summary import STATES
from omni_operator.cluster.kinds import Body, Key
from omni_operator.cluster.object_cache import ObjectCache

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OPERATOR = "diffusionrl_operator"
JOB = ["namespace", "name"]


class OperatorMetrics:
    """Metrics of the operator, and the page with those of its jobs."""

    def __init__(self, jobs: JobMetrics | None = None) -> None:
        self.registry, self._jobs = CollectorRegistry(), jobs
        self._read: Callable[[], tuple[int, int, bool]] = lambda: (0, 0, True)
        self._passes = Histogram(
            f"{OPERATOR}_reconcile_seconds",
            "Duration of reconcile passes over jobs.",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._answers = Histogram(
            f"{OPERATOR}_api_request_seconds", "Duration of requests to the API server.", ["verb"], buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._requests = self._counter(
            "api_requests", "Requests to the API server by status code; 0: no answer.", ["verb", "resource", "code"]
        )
        self._reports = self._counter("reports", "Reports received from trainers.", ["result"])
        self._failures = self._counter("attempts_failed", "Failed attempts.", ["reason"])
        self._watched = self._gauge(
            "watch_last_event_timestamp_seconds", "Time of the last event of a watch.", ["resource"]
        )
        self._depth = self._gauge("queue_depth", "Reconcile passes that wait for a worker.")
        self._tasks = self._gauge("tasks", "Tasks of the event loop. It does not depend on the number of jobs.")
        self._leader = self._gauge("leader", "1 if this replica leads: it alone makes passes and has metrics of jobs.")
        self._late = self._gauge("watch_late_writes", "Writes of the operator whose watch event is overdue.")

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counted:
        return Counted(f"{OPERATOR}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"{OPERATOR}_{name}", text, labels, registry=self.registry)

    def passed(self, result: str, seconds: float) -> None:
        self._passes.labels(result).observe(seconds)

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._requests.labels(verb, resource, str(code)).inc()
        self._answers.labels(verb).observe(seconds)

    def watched(self, resource: str) -> None:
        self._watched.labels(resource).set(time.time())

    def reported(self, result: str) -> None:
        self._reports.labels(result).inc()

    def failed(self, reason: str) -> None:
        self._failures.labels(reason).inc()

    def follow(self, depth: Callable[[], int], late: Callable[[], int], leads: Callable[[], bool]) -> None:
        """Read these values at every scrape, in the event loop."""
        self._read = lambda: (depth(), late(), leads())

    async def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        depth, late, leads = self._read()
        self._depth.set(depth)
        self._late.set(late)
        self._leader.set(leads)
        self._tasks.set(len(asyncio.all_tasks()))
        jobs = self._jobs.shown() if self._jobs and leads else None  # not twice, by each replica
        return await asyncio.to_thread(self._render, jobs)

    def _render(self, jobs: ShownJobs | None) -> bytes:
        text = generate_latest(self.registry)
        if jobs is None:
            return text
        registry = CollectorRegistry()
        registry.register(jobs)
        return text + generate_latest(registry)


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """Series of jobs, derived from their statuses at every scrape, so deleted jobs have none."""

    cache: ObjectCache
    limit: int

    def shown(self) -> ShownJobs:
        """The jobs of one page. Everything that takes long is left to the rendering."""
        jobs = self.cache.packed_jobs()
        states = Counter(summary.state for _, summary, _ in jobs)
        first = heapq.nsmallest(
            self.limit, jobs, key=lambda job: (job[1].state != "Running", job[1].finished, job[0])
        )  # fmt: skip
        packed = {key: packed for key, _, packed in first}
        return ShownJobs(states, max(0, len(jobs) - self.limit), packed, self.cache.unpack_job)


@dataclass(frozen=True, slots=True, eq=False)  # a registry hashes it
class ShownJobs(Collector):
    """Numbers of all jobs by state, and the packed objects of those with their own series."""

    states: Mapping[JobState, int]
    hidden: int
    packed: Mapping[Key, bytes]
    unpack: Callable[[bytes], Body]

    @override
    def collect(self) -> Iterator[Metric]:
        total = GaugeMetricFamily("diffusionrl_jobs", "Jobs by state.", labels=["state"])
        for state in STATES:
            total.add_metric([state], self.states.get(state, 0))
        yield total
        hidden = GaugeMetricFamily("diffusionrl_jobs_not_shown", "Jobs without their own series.")
        hidden.add_metric([], self.hidden)
        yield hidden
        jobs = {key: self.unpack(packed) for key, packed in self.packed.items()}
        uids = {key: str(body["metadata"].get("uid", "")) for key, body in jobs.items()}
        yield from _series({key: _status_of(body) for key, body in jobs.items()}, uids)

    def describe(self) -> Iterator[Metric]:
        """Nothing: Prometheus' client asks at registration."""
        return iter(())


def _status_of(body: Body) -> Status:
    try:
        return Status.model_validate(body.get("status") or {})
    except ValidationError:
        return Status()  # invalid; the next pass overwrites it


def _series(jobs: dict[Key, Status], uids: Mapping[Key, str]) -> Iterator[Metric]:
    info = GaugeMetricFamily("diffusionrl_job_info", "1 for every job, with its uid.", labels=[*JOB, "uid"])
    conditions = GaugeMetricFamily(
        "diffusionrl_job_condition", "1 if the condition has this status.", labels=[*JOB, "type", "status"]
    )
    versions = GaugeMetricFamily(
        "diffusionrl_job_weight_version",
        "Weight version of the trainer and of the rollout replicas.",
        labels=[*JOB, "role"],
    )
    for key, status in jobs.items():
        info.add_metric([*key, uids[key]], 1)
        for kind in CONDITION_TYPES:
            found = status.condition(kind)
            for value in ("True", "False", "Unknown"):
                conditions.add_metric([*key, kind, value], float((found.status if found else "Unknown") == value))
        roles = {
            "trainer": status.weights.trainer_version,
            "replica_min": status.weights.min_replica_version,
            "replica_max": status.weights.max_replica_version,
        }
        for role, version in roles.items():
            if version is not None:
                versions.add_metric([*key, role], version)
    yield from (info, conditions, versions)
    for name, text, read in _FIGURES:
        made = GaugeMetricFamily(f"diffusionrl_job_{name}", text, labels=JOB)
        for key, status in jobs.items():
            if (figure := read(status)) is not None:
                made.add_metric([*key], figure)
        yield made
    for name, text, count in _SUMS:
        summed = CounterMetricFamily(f"diffusionrl_job_{name}", text, labels=JOB)
        for key, status in jobs.items():
            summed.add_metric([*key], count(status))
        yield summed


_FIGURES: tuple[tuple[str, str, Callable[[Status], float | None]], ...] = (
    ("step", "Last completed step.", lambda status: status.progress.global_step),
    ("steps", "Total steps of the run.", lambda status: status.progress.total_steps),
    ("reward", "Mean reward of the last step.", lambda status: status.progress.reward),
    ("validation_reward", "Mean reward of the last evaluation.", lambda status: status.progress.validation_reward),
    (
        "weight_lag",
        "Weight versions that the slowest rollout replica is behind the trainer.",
        lambda status: status.weights.lag,
    ),
    ("sync_seconds", "Seconds of the last weight sync.", lambda status: status.weights.last_sync_seconds),
    ("attempts", "Attempts so far.", lambda status: status.attempts),
    ("failures_counted", "Failures counted against backoffLimit.", lambda status: status.failures_counted),
)
_SUMS: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("samples", "Samples generated in all attempts.", lambda status: status.usage.samples),
    ("accelerator_seconds", "Accelerators x seconds in all attempts.", lambda s: s.usage.accelerator_seconds),
)
