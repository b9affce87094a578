"""The operator's process: watches, background tasks and HTTP servers, from startup to a graceful stop.

kopf runs the process (signals, start and stop of its activities, login) and watches the jobs (`jobs.py`). The watches
of their children are our own (docs/adr/0013-jobs-through-kopf.md).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import kopf
from prometheus_client import disable_created_metrics

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import Credentials
from omni_operator.cluster.leader.leader_election import LeaderElection, LeaseTimes
from omni_operator.cluster.leader.write_fence import WriteFence
from omni_operator.cluster.watch.object_watch import WatchSource
from omni_operator.cluster.watch.watch_client import WatchClient
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.metrics import JobMetrics, OperatorMetrics
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reports.authorizer import ReportAuthorizer
from omni_operator.reports.endpoint import BODY_LIMIT, ReportEndpoint, ReportStore
from omni_operator.reports.relay import ReportRelay
from omni_operator.settings import Settings

from .background import CacheCleanup, LeaseHeartbeat, MissingKinds
from .http_server import PROBE_CONNECTIONS, probe_routes, serve
from .jobs import JobLists, configure_watches, new_kopf_settings, register_jobs, streams_lists
from .kopf_login import register_login
from .leading_replica import LeadingReplica
from .watches import Watches

RESTART_PAUSE = 5.0
log = logging.getLogger(__name__)


async def run(settings: Settings, credentials: Credentials, version: str) -> bool:
    """Run the operator until it is stopped or has to restart with new lists. Return whether it has to restart.

    Raises:
        OSError: a port is in use.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    cache = ObjectCache()
    reports = ReportStore()
    metrics = OperatorMetrics(JobMetrics(cache, settings.jobs_shown))
    liveness = WatchLiveness(settings.canary_deadline_seconds)
    fence = WriteFence()
    restart = asyncio.Event()
    async with (
        ApiServer(credentials, metrics.requested, version=version, fence=fence.require) as cluster,
        WatchClient(credentials, metrics.requested, version=version) as source,
        aiohttp.ClientSession() as session,
    ):
        leading = LeadingReplica(
            cache,
            reports,
            settings,
            metrics.passed,
            lambda: _reconciler(cluster, cache, reports, settings, metrics, liveness),
            cluster.clock,
        )
        election = LeaderElection(
            cluster,
            fence,
            LeaseTimes(settings.lease_seconds),
            settings.namespace,
            settings.lease,
            settings.instance,
            settings.reports_url,
            lambda: _lead(leading, watches),
            leading.end,
            cluster.clock,
            settings.stop_seconds,
            restart.set,
        )
        metrics.follow(
            lambda: leading.workers.depth, lambda: len(liveness.overdue(time.monotonic())), lambda: election.leads
        )
        relay = ReportRelay(session, lambda: fence.left() > 0, lambda: election.leader_url)
        endpoint = _report_endpoint(cluster, cache, reports, leading, metrics, relay)
        watches = Watches(
            source,
            settings.namespaces,
            cache,
            liveness,
            leading.workers.wake,
            lambda resource: metrics.watched(resource, cluster.clock()),
            settings.namespace,
            election.observe,
            restart.set,
        )
        jobs = JobLists(cluster, watches, settings.namespaces)
        watches.listed_anew = jobs.expire
        missing = MissingKinds(cluster, restart)
        async with (
            serve(probe_routes(liveness, metrics, time.monotonic), settings.http_port, connections=PROBE_CONNECTIONS),
            serve(endpoint.routes(), settings.reports_port, BODY_LIMIT),
        ):
            await missing.await_jobs()
            taking_part = asyncio.create_task(_take_part(election, watches))
            loops = [
                *watches.runs(),
                jobs.run(),
                LeaseHeartbeat(cluster, liveness, settings, cluster.clock).run(),
                missing.run(),
                CacheCleanup(cluster, cache, settings, leading.workers.wake).run(),
                _join(taking_part),
            ]
            registry = kopf.OperatorRegistry()
            register_login(registry, credentials)
            register_start_and_stop(registry, source, settings, lambda: _cancel(taking_part))
            register_jobs(registry, jobs.changed)
            operating = _operate(registry, settings.namespaces, restart)
            await _run_all(operating, loops)
    return restart.is_set()


def _reconciler(
    cluster: ApiServer,
    cache: ObjectCache,
    reports: ReportStore,
    settings: Settings,
    metrics: OperatorMetrics,
    liveness: WatchLiveness,
) -> Reconciler:
    return Reconciler(
        cluster=cluster,
        cache=cache,
        reports=reports,
        settings=settings.cluster,
        clock=cluster.clock,
        instance=settings.instance,
        timeouts=settings.timeouts,
        failed=metrics.failed,
        written=lambda kind, body: liveness.expect(kind, body, time.monotonic()),
    )


def _report_endpoint(
    cluster: ApiServer,
    cache: ObjectCache,
    reports: ReportStore,
    leading: LeadingReplica,
    metrics: OperatorMetrics,
    relay: ReportRelay,
) -> ReportEndpoint:
    return ReportEndpoint(
        reports,
        ReportAuthorizer(cluster, cache, cluster.clock),
        cache,
        cluster.clock,
        leading.workers.wake,
        metrics.reported,
        relay,
    )


def _lead(leading: LeadingReplica, watches: Watches) -> None:
    leading.begin()
    watches.wake_all()


async def _take_part(election: LeaderElection, watches: Watches) -> None:
    """Become a candidate when passes can begin: a replica that knows no children must not lead."""
    await watches.children_listed.wait()
    await election.run()


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait until it has ended."""
    task.cancel()
    await asyncio.wait([task])


async def _join(task: asyncio.Task[None]) -> None:
    """Wait for a task: raise its error, and cancel it if this is cancelled."""
    try:
        await asyncio.wait([task])
    finally:
        await _cancel(task)
    if not task.cancelled():
        task.result()


def register_start_and_stop(
    registry: kopf.OperatorRegistry,
    source: WatchSource,
    operator_settings: Settings,
    stop: Callable[[], Awaitable[None]],
) -> None:
    """Register a startup handler that configures kopf, and a cleanup handler that awaits `stop`.

    kopf itself takes 5 s more to end after its cleanup handlers.
    """

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_watches(settings, streams_lists=await streams_lists(source, operator_settings.namespace))
        settings.process.ultimate_exiting_timeout = operator_settings.stop_seconds

    @kopf.on.cleanup(registry=registry)
    async def clean(**_: Any) -> None:
        await stop()


async def _operate(registry: kopf.OperatorRegistry, namespaces: tuple[str, ...], restart: asyncio.Event) -> None:
    """Run kopf until a signal or `restart` ends it.

    kopf also ends when a watch fails for a reason that it does not know, such as a definition that is deleted. Then
    everything is observed again. Its cleanup handlers run before it raises the error, and end the process's tasks, this
    one too: so the error is taken from kopf's tasks.
    """
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=new_kopf_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=restart,
    )
    try:
        with suppress(Exception):
            await kopf.run_tasks(tasks, ignored=others)
    finally:
        ended = (task for task in tasks if task.done() and not task.cancelled())
        if error := next(filter(None, (task.exception() for task in ended)), None):
            log.error("the watch of jobs failed: %s; observing everything again in %.0f s", error, RESTART_PAUSE)
            await asyncio.sleep(RESTART_PAUSE)
            restart.set()


async def _run_all(main: Coroutine[Any, Any, None], others: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run until `main` ends; a failure of one ends all and is raised."""
    tasks = [asyncio.create_task(part) for part in (main, *others)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
