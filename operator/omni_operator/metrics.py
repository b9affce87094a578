"""Prometheus metrics of the operator and of its jobs. A page is rendered in a thread, from values that do not change.

Cardinality is bounded: label values come from closed lists, and at most `shown` jobs have their own series, running
jobs first; another metric counts the rest.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Counted
from prometheus_client.core import GaugeMetricFamily, Metric, Sample
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from pydantic import ValidationError
from typing_extensions import override

from omni_operator.api.status import CONDITION_TYPES, JobState, Status
from omni_operator.cluster.cache.job_summary import STATES
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import Body, Key
from omni_operator.status.reasons.table import reasons_shown

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OPERATOR = "diffusionrl_operator"
JOB = ["namespace", "name"]


class OperatorMetrics:
    """Metrics of the operator, and the page with the metrics of its jobs."""

    def __init__(self, jobs: JobMetrics | None = None) -> None:
        self.registry = CollectorRegistry()
        self._jobs = jobs
        self._read: Callable[[], tuple[int, int, bool]] = lambda: (0, 0, True)
        self._rendering: asyncio.Task[bytes] | None = None
        self._passes = Histogram(
            f"{OPERATOR}_reconcile_seconds",
            "Duration of reconcile passes over jobs.",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._answers = Histogram(
            f"{OPERATOR}_api_request_seconds",
            "Duration of requests to the API server.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._requests = self._counter(
            "api_requests", "Requests to the API server by status code; 0: no answer.", ["verb", "resource", "code"]
        )
        self._reports = self._counter("reports", "Reports received from trainers.", ["result"])
        self._failures = self._counter("attempts_failed", "Failed attempts.", ["reason"])
        for reason in sorted(
            reasons_shown("failure")
        ):  # `increase` does not see the first failure in a series that begins with it
            self._failures.labels(reason)
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

    def watched(self, resource: str, at: datetime) -> None:
        self._watched.labels(resource).set(at.timestamp())

    def reported(self, result: str) -> None:
        self._reports.labels(result).inc()

    def failed(self, reason: str) -> None:
        self._failures.labels(reason).inc()

    def follow(self, depth: Callable[[], int], late: Callable[[], int], leads: Callable[[], bool]) -> None:
        """Read these values at every scrape, in the event loop."""
        self._read = lambda: (depth(), late(), leads())

    async def page(self) -> bytes:
        """All metrics in Prometheus' text format. Scrapes at the same time share one page: a flood costs no more."""
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._new_page())
            self._rendering.add_done_callback(self._rendered)
        return await asyncio.shield(self._rendering)

    def _rendered(self, page: asyncio.Task[bytes]) -> None:
        self._rendering = None

    async def _new_page(self) -> bytes:
        depth, late, leads = self._read()
        self._depth.set(depth)
        self._late.set(late)
        self._leader.set(leads)
        self._tasks.set(len(asyncio.all_tasks()))
        jobs = self._jobs.shown() if self._jobs and leads else None  # not twice, by each replica
        return await asyncio.to_thread(self._render, jobs)

    def _render(self, jobs: ShownJobs | None) -> bytes:
        """The page, one metric at a time: thousands of series take many times the memory of their text."""
        parts = [generate_latest(self.registry)]
        parts += [generate_latest(_One(metric)) for metric in jobs.metrics()] if jobs else []
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _One(Collector):
    """A single metric, as a page."""

    metric: Metric

    @override
    def collect(self) -> Iterator[Metric]:
        yield self.metric


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """Series of jobs, derived from their statuses at every scrape, so deleted jobs have none."""

    cache: ObjectCache
    limit: int

    def shown(self) -> ShownJobs:
        """The jobs of one page. Everything that takes long is left to the rendering."""
        jobs = self.cache.summarized_jobs()
        states = Counter(summary.state for _, summary, _ in jobs)
        # Failures have alerts, which a job without series cannot raise.
        first = heapq.nsmallest(self.limit, jobs, key=lambda job: (job[1].display_order, job[0]))
        return ShownJobs(states, max(0, len(jobs) - self.limit), {key: body for key, _, body in first})


@dataclass(frozen=True, slots=True)
class ShownJobs:
    """Numbers of all jobs by state, and the objects of those with their own series."""

    states: Mapping[JobState, int]
    hidden: int
    bodies: Mapping[Key, Body]

    def metrics(self) -> Iterator[Metric]:
        """All metrics of jobs; the series of a metric are made while they are read."""
        total = GaugeMetricFamily("diffusionrl_jobs", "Jobs by state.", labels=["state"])
        for state in STATES:
            total.add_metric([state], self.states.get(state, 0))
        yield total
        hidden = GaugeMetricFamily("diffusionrl_jobs_not_shown", "Jobs without their own series.")
        hidden.add_metric([], self.hidden)
        yield hidden
        yield from _series([_Shown.of(key, body) for key, body in self.bodies.items()])


@dataclass(frozen=True, slots=True)
class _Shown:
    """The values of a job's series. They take a hundredth of the memory of the job's object.

    Attributes:
        conditions: the status of each of `CONDITION_TYPES`.
        versions: weight versions by role.
        figures: values of `_FIGURES`, then of `_SUMS`.
    """

    key: Key
    uid: str
    conditions: tuple[str, ...]
    versions: tuple[tuple[str, int], ...]
    figures: tuple[float | None, ...]

    @classmethod
    def of(cls, key: Key, body: Body) -> _Shown:
        status = _status_of(body)
        conditions = (status.condition(kind) for kind in CONDITION_TYPES)
        weights = status.weights
        roles = {
            "trainer": weights.trainer_version,
            "replica_min": weights.min_replica_version,
            "replica_max": weights.max_replica_version,
        }
        return cls(
            key=key,
            uid=str(body["metadata"].get("uid", "")),
            conditions=tuple(condition.status if condition else "Unknown" for condition in conditions),
            versions=tuple((role, version) for role, version in roles.items() if version is not None),
            figures=tuple(read(status) for _, _, read in (*_FIGURES, *_SUMS)),
        )


def _status_of(body: Body) -> Status:
    try:
        return Status.model_validate(body.get("status") or {})
    except ValidationError:
        return Status()  # invalid; the next pass overwrites it


Series: TypeAlias = Iterable[tuple[tuple[str, ...], float]]  # values of the labels besides the job's labels


def _series(jobs: Sequence[_Shown]) -> Iterator[Metric]:
    text = "Weight version of the trainer and of the rollout replicas."
    yield _metric("gauge", "info", "1 for every job, with its uid.", ["uid"], jobs, lambda job: [((job.uid,), 1.0)])
    yield _metric("gauge", "condition", "1 if the condition has this status.", ["type", "status"], jobs, _conditions)
    yield _metric("gauge", "weight_version", text, ["role"], jobs, lambda job: (((at,), v) for at, v in job.versions))
    for index, (name, text, _) in enumerate((*_FIGURES, *_SUMS)):
        kind = "gauge" if index < len(_FIGURES) else "counter"
        yield _metric(kind, name, text, [], jobs, functools.partial(_figure, index))


def _metric(
    kind: str, name: str, text: str, labels: Sequence[str], jobs: Sequence[_Shown], read: Callable[[_Shown], Series]
) -> Metric:
    """A metric of jobs."""
    metric = Metric(f"diffusionrl_job_{name}", text, kind)
    names = (*JOB, *labels)
    full = metric.name + ("_total" if kind == "counter" else "")
    metric.samples = (  # type: ignore[assignment]  # read once, and no list of thousands
        Sample(full, dict(zip(names, (*job.key, *values), strict=True)), float(figure))
        for job in jobs
        for values, figure in read(job)
    )
    return metric


def _conditions(job: _Shown) -> Series:
    for kind, status in zip(CONDITION_TYPES, job.conditions, strict=True):
        for value in ("True", "False", "Unknown"):
            yield (kind, value), status == value


def _figure(place: int, job: _Shown) -> Series:
    figure = job.figures[place]
    return [] if figure is None else [((), figure)]


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
    ("disruptions_counted", "Failures counted against disruptionLimit.", lambda status: status.disruptions_counted),
)
_SUMS: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("samples", "Samples generated in all attempts.", lambda status: status.usage.samples),
    ("accelerator_seconds", "Accelerators x seconds in all attempts.", lambda s: s.usage.accelerator_seconds),
)
