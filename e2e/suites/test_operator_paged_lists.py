"""An API server that does not stream lists: the informer and kopf list in pages instead."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.jobs import JobOnPlane
from e2e.operator_process import AGENT, operator
from omni_operator.handlers.jobs import PAGE

pytestmark = pytest.mark.cluster
QUICK: dict[str, Any] = {"RETRY_SECONDS": "0.1", "CANARY_SECONDS": "1", "CANARY_DEADLINE_SECONDS": "60"}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane whose API server refuses `sendInitialEvents`, as servers before Kubernetes 1.32 do."""
    with control_plane(api_flags=("--feature-gates=WatchList=false",)) as started:
        yield started


def test_jobs_are_listed_in_pages_and_then_watched(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    waiting = [JobOnPlane(api, namespace, f"waits-{number}", {"suspend": True}) for number in range(PAGE + 1)]
    running, deleted = (JobOnPlane(api, namespace, name) for name in ("red", "blue"))
    for job in waiting:
        job.submit()
    with operator(installed, tmp_path, NAMESPACES=namespace, **QUICK):
        for job in (running, deleted):
            job.start()
    running.end(1)
    api.delete(f"{deleted.path}/{deleted.name}")
    mark = installed.audit.mark()
    with operator(installed, tmp_path, NAMESPACES=namespace, **QUICK) as again:
        running.await_condition("Succeeded", "True")
        deleted.await_gone()
        waiting[-1].await_condition("Suspended", "True")
        later = JobOnPlane(api, namespace, "later")
        later.submit()
        later.await_attempt(1)
        assert again.page("/healthz").is_success
        of_kopf = installed.audit.counts(user_agent="kopf/", since=mark)
        requests = installed.audit.counts(user_agent=AGENT, since=mark)
    assert of_kopf["list", "diffusionrljobs"] == 2, "pages"
    assert requests["list", "rayjobs"] == 1
