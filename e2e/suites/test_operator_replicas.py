"""Two replicas of the operator: one leads through the Lease; it is killed, stopped, frozen, and the other takes over.

Each replica has a separate service account with the chart's rights, so the audit log tells their writes apart.
"""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.audit import Call, Mark
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import RunningOperator, operator
from e2e.operator_rights import CLUSTER, LEASE, OWN, WATCHED

pytestmark = pytest.mark.cluster
JOBS_EACH = 12
LEASE_SECONDS = "5"
WRITES = frozenset({"create", "patch", "update", "delete"})
UNFENCED = frozenset({"leases", "tokenreviews"})
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Replicas:
    """Replicas of one operator, for the jobs of a namespace.

    Attributes:
        running: by the name of their service account. A machine that is too slow may change the leader at any time, so
            tests ask the Lease who it is.
    """

    def __init__(self, plane: ControlPlane, api: Api, namespace: str, folder: Path, stack: ExitStack) -> None:
        self.plane = plane
        self.api = api
        self.namespace = namespace
        self.folder = folder
        self.stack = stack
        self.mark = plane.audit.mark()
        self.running: dict[str, RunningOperator] = {}

    def start(self, name: str) -> RunningOperator:
        """A replica with a service account of this name, ready."""
        account = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        self.api.post(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": name}})
        roles = [(f"namespaces/{self.namespace}/", "Role", (*WATCHED, *OWN)), ("", "ClusterRole", CLUSTER)]
        for where, kind, rules in roles:
            meta = {"metadata": {"name": f"{self.namespace}-{name}"}}
            self.api.post(f"{RBAC}/{where}{kind.lower()}s", {**meta, "rules": list(rules)})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": f"{self.namespace}-{name}"}
            self.api.post(
                f"{RBAC}/{where}{kind.lower()}bindings",
                {
                    **meta,
                    "roleRef": reference,
                    "subjects": [account],
                },
            )
        kubeconfig = self.plane.kubeconfig_of_account(self.namespace, name)
        folder = self.folder / name
        folder.mkdir()
        started = operator(
            self.plane,
            folder,
            kubeconfig,
            NAMESPACE=self.namespace,
            NAMESPACES=self.namespace,
            LEASE=LEASE,
            LEASE_SECONDS=LEASE_SECONDS,
            ADDRESS="127.0.0.1",
            CANARY_SECONDS="600",
            RETRY_SECONDS="0.1",
        )
        self.running[name] = self.stack.enter_context(started)
        return self.running[name]

    def lease(self) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        spec: dict[str, Any] = next(
            (item["spec"] for item in self.api.get(path)["items"] if item["metadata"]["name"] == LEASE), {}
        )
        return spec

    def leader(self, *others: str) -> str:
        """Name of the replica that leads, once one leads that is none of these."""

        def found() -> str | None:
            _, _, process = (self.lease().get("holderIdentity") or "").rpartition("_")
            names = (name for name, replica in self.running.items() if str(replica.process.pid) == process)
            return next((name for name in names if name not in others), None)

        return deadlines.wait_until("a replica to lead", JOB_SEEN, found)

    def jobs(self, prefix: str, count: int = JOBS_EACH) -> list[JobOnPlane]:
        return [JobOnPlane(self.api, self.namespace, f"{prefix}-{number}") for number in range(count)]

    def writes(self, since: Mark | None = None) -> list[tuple[str, Call]]:
        """Name of the replica and request, for everything that was written but Leases."""
        first = f"system:serviceaccount:{self.namespace}:"
        return [
            (call.user.removeprefix(first), call)
            for call in self.plane.audit.calls(since or self.mark)
            if call.user.startswith(first) and call.verb in WRITES and call.resource not in UNFENCED
        ]

    def settle(self) -> None:
        """Wait until no replica writes, and the audit log has everything."""
        before = -1
        while before != (before := len(self.writes())):
            mark = self.plane.audit.mark()
            self.api.post(f"/api/v1/namespaces/{self.namespace}/configmaps", {"metadata": {"generateName": "mark-"}})
            self.plane.audit.settled(Counter({("create", "configmaps"): 1}), since=mark)

    def assert_each_written_once(self, jobs: list[JobOnPlane], *deleted: JobOnPlane) -> None:
        """Every job got its one RayJob, and the replicas wrote one after the other."""
        for job in deleted:
            job.await_gone()
        for job in jobs:
            job.await_attempt(1)
            job.await_status("the attempt in the status", lambda status: status.get("attempts") == 1)
        self.settle()
        done = [(name, call) for name, call in self.writes() if call.code < 300]
        created = Counter(call.name for _, call in done if (call.verb, call.resource) == ("create", "rayjobs"))
        assert set(created.values()) == {1}
        assert set(created) <= {job.attempt(1) for job in (*jobs, *deleted)}
        rayjobs = {body["metadata"]["name"] for body in self.api.get(jobs[0].ray("rayjobs"))["items"]}
        assert rayjobs == {job.attempt(1) for job in jobs}
        terms = [name for name, _ in itertools.groupby(name for name, _ in done)]
        assert len(terms) <= self.lease()["leaseTransitions"] + 1, terms
        assert not {(name, call.verb, call.resource) for name, call in self.writes() if call.code == 403}


@pytest.fixture
def replicas(installed: ControlPlane, api: Api, namespace: str, tmp_path: Path) -> Iterator[Replicas]:
    installed.await_account(namespace)
    with ExitStack() as stack:
        yield Replicas(installed, api, namespace, tmp_path, stack)


def test_jobs_survive_a_leader_that_is_killed_and_one_that_stops(replicas: Replicas) -> None:
    killed = replicas.jobs("killed")
    stopped = replicas.jobs("stopped")
    for name in ("first", "second"):
        replicas.start(name)
    first = replicas.leader()
    for number, job in enumerate(killed):
        job.submit()
        if number == JOBS_EACH // 2:
            replicas.running[first].process.kill()
    second = replicas.leader(first)
    replicas.start("third")
    for number, job in enumerate(stopped):
        job.submit()
        if number == JOBS_EACH // 2:
            replicas.running[second].process.terminate()
    replicas.running[second].process.wait(JOB_SEEN)
    log = replicas.running[second].log.read_text(encoding="utf-8")
    assert "Lease" in log and ("released" in log or "does not lead any more" in log), log[-2000:]
    assert replicas.leader(first, second) == "third"
    replicas.assert_each_written_once([*killed, *stopped])
    events = replicas.api.get(f"/apis/events.k8s.io/v1/namespaces/{replicas.namespace}/events")["items"]
    assert "LeaderElected" in {event["reason"] for event in events}


def test_a_frozen_leader_writes_nothing_when_it_wakes(replicas: Replicas) -> None:
    for name in ("first", "second"):
        replicas.start(name)
    first = replicas.leader()
    frozen = replicas.running.pop(first)
    standby = next(iter(replicas.running.values()))
    replicas.running[first] = frozen
    reporting = replicas.jobs("reports", 1)[0]
    reporting.start()
    token = reporting.report_token(reporting.add_trainer(1))

    def accepted() -> bool:
        """A report to the replica that does not lead."""
        url = f"http://127.0.0.1:{standby.reports}/v1/reports"
        step = {"event": "step", "step": 7}
        answer = httpx2.post(url, json=step, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30)
        return answer.status_code == httpx2.codes.OK

    deadlines.wait_until("the report to be accepted", JOB_SEEN, accepted)
    reporting.await_status("the step", lambda status: status.get("progress", {}).get("globalStep") == 7)
    before = replicas.jobs("before")
    after = replicas.jobs("after")
    for job in before:
        job.submit()
    for job in before:
        job.await_status("the attempt in the status", lambda status: status.get("attempts") == 1)
    replicas.settle()
    replicas.stack.callback(os.kill, frozen.process.pid, signal.SIGCONT)
    os.kill(frozen.process.pid, signal.SIGSTOP)
    replicas.settle()
    mark = replicas.plane.audit.mark()
    for job in after:
        job.submit()
    replicas.api.delete(before[0].own_path)
    replicas.leader(first)
    replicas.assert_each_written_once([reporting, *before[1:], *after], before[0])
    changes = replicas.lease()["leaseTransitions"]
    os.kill(frozen.process.pid, signal.SIGCONT)
    lost = "does not lead any more"
    deadlines.wait_until("the replica to notice", JOB_SEEN, lambda: lost in frozen.log.read_text(encoding="utf-8"))
    replicas.api.patch(after[0].own_path, {"spec": {"suspend": True}})
    after[0].await_condition("Suspended", "True")
    replicas.settle()
    late = [call for name, call in replicas.writes(mark) if name == first]
    assert not late or replicas.lease()["leaseTransitions"] != changes
