"""The operator's process: watches, background tasks and HTTP servers, from startup to a graceful stop.

kopf runs the process: signals, start and stop of its activities, login. The watches are our own
(docs/adr/0013-own-watches.md).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import kopf
from prometheus_client import disable_created_metrics

from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import Credentials, Loaded
from omni_operator.cluster.kinds import RAYJOBS, Key
from omni_operator.cluster.object_cache import ObjectCache
from omni_operator.cluster.watch_client import WatchClient
from omni_operator.cluster.watch_liveness import WatchLiveness
from omni_operator.metrics import JobMetrics, OperatorMetrics
from omni_operator.reconciler import Reconciler
from omni_operator.report_authorizer import ReportAuthorizer
from omni_operator.report_endpoint import BODY_LIMIT, ReportEndpoint, ReportStore
from omni_operator.settings import Settings

from .background import CacheCleanup, LeaseHeartbeat, MissingKinds, utc_now
from .http_server import probe_routes, serve
from .job_workers import JobWorkers
from .memory_release import run_releases
from .watches import Watches

LOGIN_BACKOFF = 5.0  # seconds before kopf retries a failed login


async def run(settings: Settings, credentials: Credentials, version: str) -> bool:
    """Run the operator until it is stopped, or must restart its watches. Return whether it must restart.

    Raises:
        OSError: a port is in use.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    cache, reports = ObjectCache(), ReportStore()
    metrics = OperatorMetrics(JobMetrics(cache, settings.jobs_shown))
    liveness = WatchLiveness(settings.canary_deadline_seconds)
    async with (
        ApiServer(credentials, metrics.requested, version=version) as cluster,
        WatchClient(credentials, metrics.requested, version=version) as source,
    ):
        reconciler = Reconciler(
            cluster=cluster, cache=cache, reports=reports, settings=settings.cluster, clock=utc_now,
            instance=settings.instance, timeouts=settings.timeouts, failed=metrics.failed,
            made=lambda body: liveness.expect(RAYJOBS, body, time.monotonic()),
        )  # fmt: skip
        workers = JobWorkers(
            reconciler.reconcile, rank=lambda key: _rank(cache, key), revision=lambda key: _revision(cache, key),
            measured=metrics.passed, clock=utc_now,
            resync=lambda: settings.resync_seconds * random.uniform(0.9, 1.1), passes=settings.passes,
        )  # fmt: skip
        metrics.follow(lambda: workers.depth, lambda: len(liveness.overdue(time.monotonic())))
        endpoint = ReportEndpoint(
            reports, ReportAuthorizer(cluster, cache, utc_now), cache, utc_now, workers.wake, metrics.reported
        )
        watches = Watches(source, settings.namespaces, cache, liveness, workers.wake, metrics.watched)
        missing = MissingKinds(cluster)
        async with (
            serve(probe_routes(liveness, metrics, time.monotonic), settings.http_port),
            serve(endpoint.routes(), settings.reports_port, BODY_LIMIT),
        ):
            await missing.await_jobs()
            loops = [
                *watches.runs(), LeaseHeartbeat(cluster, liveness, settings).run(), missing.run(),
                CacheCleanup(cluster, cache, settings, workers.wake).run(), run_releases(),
            ]  # fmt: skip
            await _run_all(_operate(settings, credentials, missing.served, workers), loops)
    return missing.served.is_set()


def _rank(cache: ObjectCache, key: Key) -> int:
    summary = cache.summary(key)
    return summary.rank if summary else 1


def _revision(cache: ObjectCache, key: Key) -> object:
    """Changes with the spec of a job, when its deletion begins and when it is gone."""
    summary = cache.summary(key)
    return summary.revision if summary else None


def register_login(registry: kopf.OperatorRegistry, credentials: Credentials) -> None:
    """Register a login handler: kopf uses the operator's credentials, renewed when they expire or are rejected."""
    given: Loaded | None = None

    @kopf.on.login(registry=registry, backoff=LOGIN_BACKOFF)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        nonlocal given
        given = await credentials.current(rejected=given)
        return await _connection_info(given)


async def _connection_info(loaded: Loaded) -> kopf.ConnectionInfo:
    """Credentials in kopf's format."""
    configuration = loaded.configuration
    scheme, _, token = (await configuration.get_api_key_with_prefix("BearerToken") or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        default_namespace=loaded.namespace,
        expiration=loaded.expires,
    )


async def _operate(settings: Settings, credentials: Credentials, restart: asyncio.Event, workers: JobWorkers) -> None:
    """Run kopf until a signal or `restart` ends it; the job workers stop first."""
    registry, kopf_settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    kopf_settings.scanning.disabled = True  # it needs cluster-wide permissions
    kopf_settings.networking.request_timeout, kopf_settings.networking.connect_timeout = 30, 10
    kopf_settings.posting.enabled = False
    kopf_settings.peering.standalone = True
    kopf_settings.process.ultimate_exiting_timeout = settings.stop_seconds
    register_login(registry, credentials)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: object) -> None:
        await workers.stop(settings.stop_seconds)

    await kopf.operator(
        registry=registry, settings=kopf_settings, standalone=True, clusterwide=not settings.namespaces,
        namespaces=settings.namespaces, stop_flag=restart,
    )  # fmt: skip


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
