"""The operator on a real API server: pods of a running job are scaled, autoscaled and replaced."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import AGENT, RunningOperator
from e2e.operator_requests import assert_requests, made

pytestmark = pytest.mark.cluster


def test_a_running_job_is_scaled_with_one_request(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    rollout = {"placement": "Separate", "replicas": 2, "minReplicas": 2}
    job = JobOnPlane(api, namespace, spec={"rollout": rollout})
    job.submit()
    job.run(1)
    job.await_condition("Ready", "False", "PodsNotReady")
    path = job.cluster_path(1)
    scale = f"{job.own_path}/scale"

    def groups() -> list[tuple[str, int]]:
        return [(group["groupName"], group["replicas"]) for group in api.get(path)["spec"]["workerGroupSpecs"]]

    assert groups() == [("trainer", 1), ("rollout", 2)]
    mark = installed.audit.mark()
    api.patch(scale, {"spec": {"replicas": 5}})  # as kubectl scale and a HorizontalPodAutoscaler do
    job.await_status("5 rollout pods", lambda status: status["rollout"]["desired"] == 5, JOB_SEEN)
    assert groups() == [("trainer", 1), ("rollout", 5)]
    subresource = api.get(scale)
    selector = f"ray.io/cluster={job.attempt(1)}-x1,ray.io/group=rollout"
    assert (subresource["spec"]["replicas"], subresource["status"]) == (5, {"replicas": 0, "selector": selector})
    assert_requests(
        installed, namespace, mark, Counter({("patch", "rayclusters"): 1, ("patch", "diffusionrljobs/status"): 1})
    )
    with pytest.raises(ApiError, match=r"must not be more than spec\.rollout\.replicas"):
        api.patch(scale, {"spec": {"replicas": 1}})
    names = [job.add_pod(1, f"rollout-{number}", "rollout")[0] for number in range(3)]
    mark = installed.audit.mark()
    api.patch(scale, {"spec": {"replicas": 2}})
    job.await_status("2 rollout pods", lambda status: status["rollout"]["desired"] == 2, JOB_SEEN)
    group = api.get(path)["spec"]["workerGroupSpecs"][1]
    assert (group["replicas"], group["scaleStrategy"]["workersToDelete"]) == (2, names[2:]), "KubeRay chooses none"
    assert_requests(
        installed, namespace, mark, Counter({("patch", "rayclusters"): 1, ("patch", "diffusionrljobs/status"): 1})
    )
    updated = next(condition for condition in job.status()["conditions"] if condition["type"] == "Updated")
    assert (updated["status"], job.status()["attempts"]) == ("True", 1)


def test_who_sets_the_number_of_pods_back_each_time_is_named_and_answered_seldom(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    job = JobOnPlane(api, namespace, spec={"rollout": {"placement": "Separate", "replicas": 3}})
    job.submit()
    job.run(1)
    path = job.cluster_path(1)
    mark = installed.audit.mark()

    def told() -> bool:
        """Another program sets the number to 1, and the operator names it."""
        body = api.get(path)
        body["spec"]["workerGroupSpecs"][1]["replicas"] = 1
        try:
            api.patch(
                path,
                {
                    "metadata": {"resourceVersion": body["metadata"]["resourceVersion"]},
                    "spec": body["spec"],
                },
                fieldManager="other-program",
            )
        except ApiError as error:
            assert error.code == httpx2.codes.CONFLICT
        return job.condition("Updated").get("reason") == "ChangedByOthers"

    deadlines.wait_until("the condition", JOB_SEEN, told)
    updated = job.condition("Updated")
    assert updated["message"].startswith("field manager 'other-program' changes the number of pods of worker group")
    for _ in range(50):
        told()
    corrections = [
        call
        for call in installed.audit.calls(mark)
        if call.user_agent.startswith(AGENT)
        and (call.verb, call.resource, call.namespace) == ("patch", "rayclusters", namespace)
    ]
    assert 5 <= len(corrections) < 12
    job.await_events("ChangedByOthers")


def test_limits_of_a_worker_group_that_another_program_sets_are_put_right_with_one_request(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    job = JobOnPlane(api, namespace, spec={"rollout": {"placement": "Separate", "replicas": 3}})
    job.submit()
    job.run(1)
    job.await_condition("Ready", "False", "PodsNotReady")
    path = job.cluster_path(1)

    def limits() -> list[tuple[int, int, int]]:
        groups = api.get(path)["spec"]["workerGroupSpecs"]
        return [(group["minReplicas"], group["replicas"], group["maxReplicas"]) for group in groups]

    before = limits()
    assert before == [(1, 1, 1), (1, 3, 1024)]
    for index, changed in ((1, {"maxReplicas": 2}), (1, {"minReplicas": 5}), (0, {"minReplicas": 2, "maxReplicas": 2})):
        groups = api.get(path)["spec"]["workerGroupSpecs"]
        mark = installed.audit.mark()
        groups[index] |= changed
        api.patch(path, {"spec": {"workerGroupSpecs": groups}}, fieldManager="other-program")
        deadlines.wait_until("the limits", JOB_SEEN, lambda: limits() == before)
        assert_requests(installed, namespace, mark, Counter({("patch", "rayclusters"): 1}))
    assert job.condition("Updated")["reason"] == "AsRequested"


def test_the_reward_pods_of_a_running_job_are_scaled_with_one_request(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    judge = {"base": "owner/judge", "placement": "Separate", "replicas": 2}
    reward = {"scorers": [{"name": "genrm_ocr"}], "model": judge}
    job = JobOnPlane(api, namespace, spec={"reward": reward})
    job.submit()
    job.run(1)
    job.await_condition("Ready", "False", "PodsNotReady")
    path = job.cluster_path(1)

    def group() -> dict[str, Any]:
        group_spec: dict[str, Any] = api.get(path)["spec"]["workerGroupSpecs"][1]
        return group_spec

    assert (group()["groupName"], group()["replicas"]) == ("reward", 2)
    names = [job.add_pod(1, f"reward-{number}", "reward")[0] for number in range(2)]
    for replicas, removed in ((4, None), (1, names[1:])):
        mark = installed.audit.mark()
        api.patch(job.own_path, {"spec": {"reward": {"model": {"replicas": replicas}}}})
        deadlines.wait_until(f"{replicas} reward pods", JOB_SEEN, lambda count=replicas: group()["replicas"] == count)
        assert group().get("scaleStrategy", {}).get("workersToDelete") == removed
        job.await_condition("Updated", "True", "AsRequested")
        assert_requests(
            installed, namespace, mark, Counter({("patch", "rayclusters"): 1, ("patch", "diffusionrljobs/status"): 1})
        )
    assert job.status()["attempts"] == 1


def test_rollout_pods_follow_the_reported_queue_and_nothing_else_changes_their_number(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    def refused(job: JobOnPlane) -> None:
        with pytest.raises(ApiError, match=r"cannot change while spec\.rollout\.autoscaling does"):
            api.patch(f"{job.own_path}/scale", {"spec": {"replicas": 2}})  # as a HorizontalPodAutoscaler does

    rollout = {"placement": "Separate", "autoscaling": {**POLICY, "samplesPerReplica": 10}}
    job = JobOnPlane(api, namespace, spec={"rollout": rollout})
    follow_queue(installed, running, job, "rollout", "rollout/queued_samples", "RolloutsScaled", refused)


def test_reward_pods_follow_the_reported_queue_and_nothing_else_changes_their_number(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    def refused(job: JobOnPlane) -> None:
        with pytest.raises(ApiError, match=r"cannot change while spec\.reward\.model\.autoscaling does"):
            api.patch(job.own_path, {"spec": {"reward": {"model": {"replicas": 2}}}})

    judge = {"base": "owner/judge", "placement": "Separate", "autoscaling": {**POLICY, "requestsPerReplica": 10}}
    job = JobOnPlane(api, namespace, spec={"reward": {"scorers": [{"name": "genrm_ocr"}], "model": judge}})
    follow_queue(installed, running, job, "reward", "reward/queued_requests", "RewardsScaled", refused)


POLICY = {"minReplicas": 1, "maxReplicas": 4, "stabilizationSeconds": 2}


def follow_queue(
    installed: ControlPlane,
    running: RunningOperator,
    job: JobOnPlane,
    pool: str,
    name: str,
    condition: str,
    refused: Callable[[JobOnPlane], None],
) -> None:
    """Report queues for which one pod, four, and one are enough.

    Args:
        name: name of the queue in reports.
        condition: type of the condition about the queue.
        refused: asserts that the API server refuses another number in the job.
    """
    api = job.api
    job.submit()
    job.run(1)
    job.await_condition(condition, "Unknown", "NoReports")
    pod = job.add_trainer(1)
    path = job.cluster_path(1)
    token = job.report_token(pod)

    url = f"http://127.0.0.1:{running.reports}/v1/reports"
    sent = {"Authorization": f"Bearer {token}"}

    def queue(number: int) -> int:
        """The trainer reports how much waits; how many pods the group has."""
        answer = httpx2.post(url, json={"event": "heartbeat", name: number}, headers=sent, timeout=JOB_SEEN)
        group = api.get(path)["spec"]["workerGroupSpecs"][1]
        assert group["groupName"] == pool
        return int(group["replicas"]) if answer.status_code == httpx2.codes.OK else 0

    mark = installed.audit.mark()
    deadlines.wait_until(f"four {pool} pods", JOB_SEEN, lambda: queue(35) == 4)
    job.await_status(f"4 {pool} pods", lambda status: status[pool]["desired"] == 4, JOB_SEEN)
    refused(job)
    deadlines.wait_until(f"one {pool} pod", JOB_SEEN, lambda: queue(0) == 1)
    job.await_status(f"1 {pool} pod", lambda status: status[pool]["desired"] == 1, JOB_SEEN)
    assert made(installed, job.namespace, mark)["patch", "rayclusters"] == 2, "one for each change"
    job.await_condition(condition, "True", "WithinLimits")


def test_rollout_pods_are_replaced_one_by_one_and_replaced_again_if_the_new_ones_do_not_serve(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    replace_and_roll_back(installed, running, api, namespace, "rollout")


def test_reward_pods_are_replaced_one_by_one_and_replaced_again_if_the_new_ones_do_not_serve(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str
) -> None:
    replace_and_roll_back(installed, running, api, namespace, "reward")


def replace_and_roll_back(
    installed: ControlPlane, running: RunningOperator, api: Api, namespace: str, pool: str
) -> None:
    """Change the image of the two pods of a pool to one whose pods serve, then to one whose pods do not."""
    pool_fields = {"placement": "Separate", "replicas": 2, "updateStrategy": {"progressDeadlineSeconds": 3}}
    judged = {"scorers": [{"name": "judged", "builtin": "genrm_ocr"}], "model": {"base": "org/judge", **pool_fields}}
    job = JobOnPlane(api, namespace, spec={"rollout": pool_fields} if pool == "rollout" else {"reward": judged})
    job.submit()
    job.run(1)
    token = job.report_token(job.add_trainer(1))
    path = job.cluster_path(1)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    url = f"http://127.0.0.1:{running.reports}/v1/reports"
    sent = {"Authorization": f"Bearer {token}"}
    serving: dict[str, int] = {}

    def group() -> dict[str, Any]:
        group_spec: dict[str, Any] = api.get(path)["spec"]["workerGroupSpecs"][1]
        return group_spec

    def edit(image: str) -> None:
        changed = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": image}]}}}
        api.patch(job.own_path, {"spec": {pool: changed if pool == "rollout" else {"model": changed}}})

    def add(number: int, *, serves: bool = True) -> str:
        """KubeRay makes a pod, and its replica serves."""
        name, _ = job.add_pod(1, f"{pool}-{number}", pool)
        if serves:
            address = f"10.1.0.{number}"
            ready = [{"type": "Ready", "status": "True"}]
            status = {"phase": "Running", "conditions": ready, "podIP": address, "podIPs": [{"ip": address}]}
            api.patch(f"{pods}/{name}/status", {"status": status})
            serving[address] = number
        return name

    def named() -> set[str]:
        """The trainer reports, and the names of the pods that KubeRay is to delete and has not deleted."""
        httpx2.post(url, json={"event": "heartbeat", f"{pool}/replica_versions": serving}, headers=sent)
        present = {pod["metadata"]["name"] for pod in api.get(pods)["items"]}
        return present & {*group().get("scaleStrategy", {}).get("workersToDelete", ())}

    def replaced(pod: str, number: int, *, serves: bool = True) -> str:
        """Once it is this pod that is named, KubeRay deletes it and makes another one; its name."""
        deadlines.wait_until(f"{pod} to be replaced", JOB_SEEN, lambda: named() == {pod})
        api.delete(f"{pods}/{pod}?gracePeriodSeconds=0")
        serving.pop(f"10.1.0.{pod.rpartition('-')[2]}", None)
        return add(number, serves=serves)

    first = add(1)
    second = add(2)
    deadlines.wait_until("the report", JOB_SEEN, lambda: named() == set())
    mark = installed.audit.mark()
    edit("image:2")
    third = replaced(first, 3)
    job.await_condition("Updated", "False", "RollingUpdate")
    fourth = replaced(second, 4)
    deadlines.wait_until("no pod to be replaced", JOB_SEEN, lambda: named() == set())
    job.await_condition("Updated", "True", "AsRequested")
    if pool == "rollout":
        job.await_status("2 updated pods", lambda status: status["rollout"]["updated"] == 2)
    assert group()["template"]["spec"]["containers"][0]["image"] == "image:2"
    patches = made(installed, namespace, mark)["patch", "rayclusters"]
    assert patches == 4, "the template, each pod, and the end"
    template = group()["template"]

    edit("image:3")
    fifth = replaced(third, 5, serves=False)
    assert group()["template"]["spec"]["containers"][0]["image"] == "image:3"
    # The pod is ready, so it takes a report of after its deadline to know that its replica does not serve.
    deadlines.wait_until("the template before", JOB_SEEN, lambda: (named(), group()["template"])[1] == template)
    updated = job.await_condition("Updated", "False", "RolledBack")
    assert updated["message"].startswith(f"{pool} pods with the current spec did not serve within 3 s")
    assert group()["template"] == template
    sixth = replaced(fifth, 6)
    deadlines.wait_until("no pod to be replaced", JOB_SEEN, lambda: named() == set())
    assert {pod["metadata"]["name"] for pod in api.get(pods)["items"]} >= {fourth, sixth}
    job.await_events("RollingUpdate", "PodsUpdated", "RolledBack")
    assert (job.condition("Updated")["reason"], job.status()["attempts"]) == ("RolledBack", 1)
