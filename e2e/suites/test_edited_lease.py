"""Two replicas whose clocks differ by two hours, while others edit their Lease and freeze their processes."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api import CONFLICT, NOT_FOUND, Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN
from e2e.shifted_clock import shifted_clock
from e2e.suites.test_operator_replicas import Replicas

pytestmark = pytest.mark.cluster
HOUR = 3600
JOBS = 12
EDITS: list[dict[str, Any]] = [
    {"holderIdentity": "gone"},
    {"holderIdentity": None},
    {"leaseDurationSeconds": 1},
    {"leaseDurationSeconds": 2**31 - 1},
    {"renewTime": "2099-01-01T00:00:00.000000Z"},
]


@contextmanager
def repeated(act: Callable[[], None], chance: random.Random) -> Iterator[None]:
    """Do it again and again meanwhile, after pauses of up to two seconds."""
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(chance.uniform(0.2, 2)):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_no_edit_of_the_lease_and_no_clock_makes_two_leaders_or_none(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.await_account(namespace)
    chance = random.Random(7)
    done = Counter[str]()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/shared"
    with ExitStack() as stack, installed.api("e2e-hostile") as hostile:
        replicas = Replicas(installed, api, namespace, tmp_path, stack)
        for name, seconds in (("first", HOUR), ("second", -HOUR)):
            folder = tmp_path / f"clock-of-{name}"
            folder.mkdir()
            clock = shifted_clock(folder)
            clock.shift(seconds)
            monkeypatch.setenv("OPERATOR_PYTHON", str(clock.python))
            replicas.start(name)

        def edit() -> None:
            change = chance.choice([None, *EDITS])
            try:
                if change is None:
                    hostile.delete(path)
                else:
                    hostile.patch(path, {"spec": change})
            except ApiError as error:
                assert error.code in (NOT_FOUND, CONFLICT)
            done["edit"] += 1

        def freeze() -> None:
            pid = chance.choice(list(replicas.running.values())).process.pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.3, 6))  # longer than a leader may write after its last renewal, or not
            os.kill(pid, signal.SIGCONT)
            done["freeze"] += 1

        jobs = replicas.jobs("edited", JOBS)
        with repeated(edit, random.Random(1)), repeated(freeze, random.Random(2)):
            for job in jobs:
                job.patience = 4 * JOB_SEEN  # a Lease of years counts for a minute
                job.submit()
                time.sleep(1.5)
        for job in jobs:
            job.await_status("the attempt", lambda status: status.get("attempts") == 1)
        assert done["edit"] > JOBS / 2 and done["freeze"] > 1
        replicas.settle()
        created = [
            call.name
            for _, call in replicas.writes()
            if (call.verb, call.resource) == ("create", "rayjobs") and call.code < 300
        ]
        assert sorted(created) == sorted(job.attempt(1) for job in jobs)
        for job in jobs:
            assert (job.status()["attempts"], job.status().get("failures", [])) == (1, [])
        for running in replicas.running.values():
            assert running.page("/healthz").status_code == 200
            assert "Traceback" not in running.log.read_text(encoding="utf-8")
