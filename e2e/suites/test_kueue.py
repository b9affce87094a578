"""Jobs in a queue of a real Kueue, with a real KubeRay: admission, also in part, waiting, preemption, return."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from e2e import kueue
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from e2e.drl import run_drl
from e2e.jobs import JobOnPlane, condition
from e2e.operator_process import RunningOperator, install, operator

pytestmark = [pytest.mark.bare, pytest.mark.timeout(600), pytest.mark.about("e2e/kueue.py")]
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
PATIENCE = 90.0


def queue_objects(accelerators: int = 2, stop: str = "None") -> list[dict[str, Any]]:
    """A queue with a quota of this many accelerators."""
    return kueue.queue_objects({"nvidia.com/gpu": accelerators}, stop=stop)


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, RunningOperator]]:
    """A control plane with Kueue, KubeRay and a queue, and its operator."""
    folder = tmp_path_factory.mktemp("kueue")
    try:
        with control_plane({"gpu-0": {"nvidia.com/gpu": 8}}, parent=folder) as plane, kueue.queues(plane):
            install(plane, kuberay=False)
            kueue.apply(plane, queue_objects())
            with operator(plane, folder, QUEUE_SECONDS="10") as running:
                yield plane, running
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture(scope="module")
def queued(operated: tuple[ControlPlane, RunningOperator]) -> ControlPlane:
    return operated[0]


COLOCATED: dict[str, Any] = {
    "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 2}},
    "rollout": {"replicas": 2},
}


def submit(
    api: Api,
    name: str,
    spec: dict[str, Any] = COLOCATED,
    priority: str | None = None,
    annotations: dict[str, str] | None = None,
) -> JobOnPlane:
    """A job in the queue, which wants both accelerators of it unless the spec says otherwise."""
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    job = JobOnPlane(api, "default", name, patience=PATIENCE, labels=labels, annotations=annotations or {}, spec=spec)
    job.submit()
    return job


def end(*jobs: JobOnPlane) -> None:
    """Delete jobs: the next test has the whole quota."""
    for job in jobs:
        job.api.delete(job.own_path)
        job.await_gone()


def cluster_of(job: JobOnPlane) -> list[str]:
    """Names of the RayClusters of a job."""
    clusters = job.api.get(job.ray("rayclusters"))["items"]
    return [item["metadata"]["name"] for item in clusters if item["metadata"]["name"].startswith(f"{job.name}-")]


def await_state(job: JobOnPlane, state: str) -> dict[str, Any]:
    return job.await_status(state, lambda found: found.get("state") == state)


def test_a_job_is_one_workload_waits_for_quota_is_preempted_and_returns(queued: ControlPlane) -> None:
    with queued.api() as api:
        first = submit(api, "first")
        first.await_condition("Admitted", "True")
        deadlines.wait_until("its workload", PATIENCE, lambda: len(api.get(WORKLOADS)["items"]) == 1)
        (workload,) = api.get(WORKLOADS)["items"]
        pods = {part["name"]: part["count"] for part in workload["spec"]["podSets"]}
        assert pods == {"head": 1, "trainer": 1}
        deadlines.wait_until("its RayCluster", PATIENCE, lambda: cluster_of(first) or None)
        uid = first.await_attempt(1)["metadata"]["uid"]

        second = submit(api, "second")
        second.await_status(
            "Kueue's reason",
            lambda found: "insufficient unused quota" in condition(found, "Admitted").get("message", ""),
        )
        why = run_drl(queued.kubeconfig, "why", "second", "--namespace=default")
        assert why.exit_code == 0 and "insufficient unused quota" in why.output
        assert not cluster_of(second)

        urgent = submit(api, "urgent", priority="urgent")
        urgent.await_condition("Admitted", "True")
        await_state(first, "Queued")
        deadlines.wait_until("the pods of the preempted job to be gone", PATIENCE, lambda: not cluster_of(first))

        end(second, urgent)
        first.await_condition("Admitted", "True")
        deadlines.wait_until("a RayCluster again", PATIENCE, lambda: cluster_of(first) or None)
        status = first.status()
        assert status["attempts"] == 1 and first.await_attempt(1)["metadata"]["uid"] == uid
        assert condition(status, "Failed").get("status") != "True"

        end(first)


def test_quota_of_a_job_that_kuberay_refuses_is_free_for_the_next(queued: ControlPlane) -> None:
    with queued.api() as api:
        kueue.apply(queued, queue_objects(accelerators=2))
        # KubeRay allows this variable only with fault tolerance of the GCS.
        container = {"name": "ray", "env": [{"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}]}
        refused = submit(api, "refused", {**COLOCATED, "head": {"podTemplate": {"spec": {"containers": [container]}}}})
        refused.await_condition("Failed", "True", "InvalidConfig")
        assert "KubeRay refused the RayJob" in refused.condition("Failed")["message"]
        second = submit(api, "after-refused")
        deadlines.wait_until("a RayCluster of the next", PATIENCE, lambda: cluster_of(second) or None)
        end(refused, second)


def test_a_queue_admits_all_pools_as_one_workload_and_their_numbers_stay(queued: ControlPlane) -> None:
    limits = {"minReplicas": 1, "maxReplicas": 4}
    spec: dict[str, Any] = {
        "trainer": {"totalSteps": 10, "accelerator": {"vendor": "CPU"}},
        "rollout": {"placement": "Separate", "replicas": 2, "autoscaling": {**limits, "samplesPerReplica": 8}},
        "reward": {
            "scorers": [{"name": "genrm_ocr"}],
            "model": {
                "base": "owner/judge",
                "placement": "Separate",
                "replicas": 2,
                "autoscaling": {**limits, "requestsPerReplica": 8},
            },
        },
    }
    with queued.api() as api:
        job = submit(api, "pools", spec)
        job.await_condition("Admitted", "True")
        uid = job.await_attempt(1)["metadata"]["uid"]

        def own() -> list[dict[str, Any]]:
            owned = ((item, item["metadata"].get("ownerReferences", ())) for item in api.get(WORKLOADS)["items"])
            return [item for item, owners in owned if uid in {owner["uid"] for owner in owners}]

        (workload,) = deadlines.wait_until("its workload", PATIENCE, own)
        pods = {part["name"]: part["count"] for part in workload["spec"]["podSets"]}
        assert pods == {"head": 1, "trainer": 1, "rollout": 2, "reward": 2}
        (name,) = deadlines.wait_until("its RayCluster", PATIENCE, lambda: cluster_of(job) or None)
        for condition_type in ("RolloutsScaled", "RewardsScaled"):
            job.await_condition(condition_type, "False", "InQueue")
        groups = api.get(job.ray("rayclusters", name))["spec"]["workerGroupSpecs"]
        numbers = [(group["groupName"], group["minReplicas"], group["maxReplicas"]) for group in groups]
        assert numbers == [("trainer", 1, 1), ("rollout", 2, 2), ("reward", 2, 2)]
        end(job)


def workloads_of(job: JobOnPlane) -> list[dict[str, Any]]:
    """The Workloads of a job's first attempt."""
    uid = job.await_attempt(1)["metadata"]["uid"]
    return [item for item in job.api.get(WORKLOADS)["items"] if item["metadata"]["ownerReferences"][0]["uid"] == uid]


def numbers_of(job: JobOnPlane) -> dict[str, Any]:
    """Rollout pods of a job, by what has their number."""
    (workload,) = workloads_of(job)
    (cluster,) = cluster_of(job)
    groups = {
        group["groupName"]: group for group in job.api.get(job.ray("rayclusters", cluster))["spec"]["workerGroupSpecs"]
    }
    (nodes,) = re.findall(r"rollout\.nnodes=(\d+)", job.await_attempt(1)["spec"]["entrypoint"])
    return {
        "Workload": {part["name"]: part["count"] for part in workload["spec"]["podSets"]}["rollout"],
        "RayCluster": groups["rollout"]["replicas"],
        "trainer": int(nodes),
        "status": job.status()["rollout"]["desired"],
    }


def test_a_queue_without_room_for_all_rollout_pods_admits_as_many_as_fit(queued: ControlPlane) -> None:
    spec: dict[str, Any] = {
        "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 1}},
        "rollout": {"placement": "Separate", "replicas": 4, "minReplicas": 1},
    }
    with queued.api() as api:
        kueue.apply(queued, queue_objects(accelerators=3))
        job = submit(api, "fewer", spec)
        (workload,) = deadlines.wait_until("its Workload", PATIENCE, lambda: workloads_of(job) or None)
        admitted = job.await_condition("Admitted", "True", "PartiallyAdmitted")
        assert admitted["message"].startswith("admitted with 2 of 4 rollout pods")
        deadlines.wait_until("its RayCluster", PATIENCE, lambda: cluster_of(job) or None)
        assert set(numbers_of(job).values()) == {2}

        urgent = submit(api, "urgent", priority="urgent")
        urgent.await_condition("Admitted", "True")
        deadlines.wait_until(
            "all pods to be asked for again", PATIENCE, lambda: "for 4 of 4" in job.condition("Admitted")["message"]
        )
        kueue.apply(queued, queue_objects(accelerators=7))
        job.await_condition("Admitted", "True", "ChildUnsuspended")
        deadlines.wait_until("its RayCluster", PATIENCE, lambda: cluster_of(job) or None)
        assert set(numbers_of(job).values()) == {4} and job.status()["attempts"] == 1
        # In all of that, Kueue has updated the Workload, and never made another one, which would be the last in line.
        assert workloads_of(job)[0]["metadata"]["uid"] == workload["metadata"]["uid"]
        end(job, urgent)


def test_a_namespace_with_a_default_queue_keeps_the_pods_that_were_admitted(queued: ControlPlane) -> None:
    spec: dict[str, Any] = {
        "trainer": {"totalSteps": 10, "accelerator": {"vendor": "CPU"}},
        "rollout": {"placement": "Separate", "replicas": 2},
    }
    with queued.api() as api:
        kueue.apply(
            queued,
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "by-default"}},
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "LocalQueue",
                    "metadata": {"name": "default", "namespace": "by-default"},
                    "spec": {"clusterQueue": "all"},
                },
            ],
        )
        local = "/apis/kueue.x-k8s.io/v1beta2/namespaces/by-default/localqueues/default"
        deadlines.wait_until(
            "the queue", PATIENCE, lambda: condition(api.get(local).get("status") or {}, "Active") or None
        )
        job = JobOnPlane(api, "by-default", "unlabelled", patience=PATIENCE, spec=spec)
        job.submit()
        job.await_condition("Admitted", "True")
        assert job.await_attempt(1)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"
        (name,) = deadlines.wait_until("its RayCluster", PATIENCE, lambda: cluster_of(job) or None)
        path = job.ray("rayclusters", name)
        job.set_running(1)
        job.await_status("the training", lambda found: found.get("state") == "Running")
        api.patch(f"{job.own_path}/scale", {"spec": {"replicas": 4}})
        job.await_condition("Updated", "False", "NextAttempt")
        groups = {group["groupName"]: group["replicas"] for group in api.get(path)["spec"]["workerGroupSpecs"]}
        assert groups == {"trainer": 1, "rollout": 2}
        end(job)


def test_a_job_that_asks_for_too_much_is_admitted_after_it_asks_for_less(queued: ControlPlane) -> None:
    with queued.api() as api:
        kueue.apply(queued, queue_objects(accelerators=2))
        accelerator = {"vendor": "NVIDIA", "count": 4}
        spec = {"trainer": {"totalSteps": 10, "accelerator": accelerator}, "rollout": {"replicas": 4}}
        job = submit(api, "too-much", spec)
        await_state(job, "Queued")
        api.patch(job.own_path, {"spec": COLOCATED})
        job.await_status("a second attempt", lambda found: found["attempts"] == 2)
        job.await_condition("Admitted", "True")
        assert "failures" not in job.status() or job.status()["failures"] == []
        end(job)


def test_a_quota_that_shrinks_takes_nothing_back_and_a_drained_queue_does(queued: ControlPlane) -> None:
    with queued.api() as api:
        kueue.apply(queued, queue_objects(accelerators=20))
        spec = {**COLOCATED, "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 2}}}
        job = submit(api, "shrunk", spec)
        job.await_condition("Admitted", "True")
        (name,) = deadlines.wait_until("its RayCluster", PATIENCE, lambda: cluster_of(job) or None)
        kueue.apply(queued, queue_objects(accelerators=1))
        waiting = submit(api, "after-it", spec)
        await_state(waiting, "Queued")
        assert cluster_of(job) == [name] and job.condition("Admitted")["status"] == "True"

        kueue.apply(queued, queue_objects(accelerators=20, stop="HoldAndDrain"))
        await_state(job, "Queued")
        deadlines.wait_until("its pods to be gone", PATIENCE, lambda: not cluster_of(job))
        kueue.apply(queued, queue_objects(accelerators=20))
        for resumed in (job, waiting):
            resumed.await_condition("Admitted", "True")
        status = job.status()
        assert (status["attempts"], status.get("failures", [])) == (1, [])
        end(job, waiting)


def is_true(item: dict[str, Any], kind: str) -> bool:
    return condition(item.get("status") or {}, kind).get("status") == "True"


class ElasticJob:
    """A running job with one trainer pod and two rollout pods, which Kueue lets autoscaling change."""

    def __init__(self, api: Api, reports: int, name: str) -> None:
        autoscaling = {"minReplicas": 1, "maxReplicas": 4, "samplesPerReplica": 10, "stabilizationSeconds": 2}
        spec = {
            "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 1}},
            "rollout": {"placement": "Separate", "replicas": 2, "autoscaling": autoscaling},
        }
        self.api = api
        self.job = submit(api, name, spec, annotations={"kueue.x-k8s.io/elastic-job": "true"})
        self.url = f"http://127.0.0.1:{reports}/v1/reports"
        self.start()

    def start(self) -> None:
        """The queue admits it, and Ray runs it."""
        self.job.await_condition("Admitted", "True")
        deadlines.wait_until("two rollout pods", PATIENCE, lambda: len(self.scheduled()) == 2)
        (trainer,) = deadlines.wait_until("the trainer pod", PATIENCE, lambda: self.pods("trainer"))
        self.job.set_running(1)
        self.job.await_status("the training", lambda found: found.get("state") == "Running")
        token = self.job.report_token((trainer["metadata"]["name"], trainer["metadata"]["uid"]))
        self.sent = {"Authorization": f"Bearer {token}"}

    def report_until(self, what: str, samples: int, good: Callable[[], bool]) -> None:
        """The trainer reports again and again how many samples wait, until something is so."""
        body = {"event": "heartbeat", "rollout/queued_samples": samples}

        def there() -> bool:
            answer = httpx2.post(self.url, json=body, headers=self.sent, timeout=10, trust_env=False)
            return answer.status_code == httpx2.codes.OK and good()

        deadlines.wait_until(what, PATIENCE, there)

    def pods(self, group: str = "rollout") -> list[dict[str, Any]]:
        """Its pods of a group that are not being deleted."""
        labels = f"diffusionrl.io/job={self.job.name},ray.io/group={group}"
        pods = self.api.get("/api/v1/namespaces/default/pods", labelSelector=labels)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def scheduled(self) -> list[dict[str, Any]]:
        """Its rollout pods on a node."""
        return [pod for pod in self.pods() if "nodeName" in pod["spec"]]

    def workloads(self, *, finished: bool = False) -> list[int]:
        """Rollout pods of its Workloads."""
        items = [item for item in workloads_of(self.job) if is_true(item, "Finished") == finished]
        return [part["count"] for item in items for part in item["spec"]["podSets"] if part["name"] == "rollout"]

    def await_used(self, accelerators: int) -> None:
        """So many accelerators of the queue are reserved."""

        def there() -> bool:
            status = self.api.get("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/all")["status"]
            (flavor,) = status["flavorsReservation"]
            total = {item["name"]: item["total"] for item in flavor["resources"]}["nvidia.com/gpu"]
            return int(total) == accelerators

        deadlines.wait_until(f"{accelerators} accelerators to be reserved", PATIENCE, there)

    def condition(self) -> tuple[str, str]:
        scaled = self.job.condition("RolloutsScaled")
        return str(scaled["reason"]), str(scaled["message"])


def test_quota_follows_the_number_of_autoscaled_pods(operated: tuple[ControlPlane, RunningOperator]) -> None:
    plane, running = operated
    with plane.api() as api:
        kueue.apply(plane, queue_objects(accelerators=6))
        elastic = ElasticJob(api, running.reports, "elastic")
        assert elastic.workloads() == [2]
        elastic.await_used(3)
        elastic.report_until("four rollout pods on a node", 35, lambda: len(elastic.scheduled()) == 4)
        deadlines.wait_until("the first Workload to be replaced", PATIENCE, lambda: elastic.workloads() == [4])
        assert elastic.workloads(finished=True) == [2]
        elastic.await_used(5)
        elastic.report_until("the condition", 35, lambda: elastic.condition() == ("WithinLimits", "4 rollout pods"))
        waiting = submit(api, "waits", COLOCATED)
        waiting.await_status("Kueue's reason", lambda found: "quota" in condition(found, "Admitted").get("message", ""))

        elastic.report_until("one rollout pod", 0, lambda: len(elastic.pods()) == 1)
        deadlines.wait_until("the quota to be returned", PATIENCE, lambda: elastic.workloads() == [1])
        waiting.await_condition("Admitted", "True")
        elastic.await_used(2 + 2)
        status = elastic.job.status()
        assert (status["attempts"], status["state"], status.get("failures", [])) == (1, "Running", [])
        end(elastic.job, waiting)


def test_a_queue_without_room_for_more_pods_holds_them_back_and_the_run_goes_on(
    operated: tuple[ControlPlane, RunningOperator],
) -> None:
    plane, running = operated
    with plane.api() as api:
        kueue.apply(plane, queue_objects(accelerators=4))
        elastic = ElasticJob(api, running.reports, "held")
        message = "waits for quota of its Kueue queue"
        elastic.report_until("the condition", 35, lambda: message in elastic.condition()[1])
        deadlines.wait_until("the second Workload", PATIENCE, lambda: sorted(elastic.workloads()) == [2, 4])
        deadlines.wait_until("two pods that wait", PATIENCE, lambda: len(elastic.pods()) == 4)
        assert len(elastic.scheduled()) == 2
        elastic.await_used(3)
        assert elastic.job.status()["state"] == "Running" and not elastic.job.await_attempt(1)["spec"].get("suspend")
        kueue.apply(plane, queue_objects(accelerators=5))
        elastic.report_until("four rollout pods on a node", 35, lambda: len(elastic.scheduled()) == 4)
        deadlines.wait_until("one Workload", PATIENCE, lambda: elastic.workloads() == [4])

        urgent = submit(api, "urgent", priority="urgent")
        urgent.await_condition("Admitted", "True")
        await_state(elastic.job, "Queued")
        deadlines.wait_until("the pods of its start to be asked for", PATIENCE, lambda: elastic.workloads() == [2])
        # Kueue 0.17.0 cannot start it again: docs/adr/0030-elastic-jobs.md.
        end(elastic.job, urgent)
