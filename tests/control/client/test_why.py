"""`drl why`: pods, Kueue and events next to the conditions, and rights that are missing."""

from typing import Any

from control.client.fake_server import EVENTS, FakeServer, make_job, owners
from control.client.job_objects import PODS, event
from omni_operator.api.status import Children, Condition, Status
from omni_operator.client.explanation import PodTrouble, Surroundings, explain, find_pod_troubles
from omni_operator.client.surroundings import select_warnings
from omni_operator.cluster.cache.object_parser import parse_pod

AT = "2026-01-01T00:00:00Z"
NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pod(name: str, **status: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": name, "creationTimestamp": AT, "ownerReferences": owners()}
    return {"metadata": meta, "status": status}


def waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    state = {"name": "ray", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(name, containerStatuses=[state])


def ended(name: str, code: int) -> dict[str, Any]:
    state = {"name": "download", "state": {"terminated": {"exitCode": code, "reason": "Completed"}}}
    return pod(name, initContainerStatuses=[state])


def unscheduled(name: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODE}
    return pod(name, conditions=[condition])


def test_pods_with_the_same_trouble_are_told_once() -> None:
    bodies = [unscheduled(f"p{number}") for number in range(5)]
    bodies += [waiting("q", "ImagePullBackOff", "no image"), waiting("r", "ContainerCreating")]
    bodies += [ended("s", 0)]
    troubles = find_pod_troubles(tuple(map(parse_pod, bodies)))
    assert [(trouble.reason, trouble.text, len(trouble.pods)) for trouble in troubles] == [
        ("ImagePullBackOff", "no image", 1),
        ("Unschedulable", NO_NODE, 5),
    ]
    explanation = explain("red", Status(state="Running"), AT, around=Surroundings(tuple(map(parse_pod, bodies))))
    assert f"Pods p0, p1, p2 and 2 more (created {AT}): Unschedulable: {NO_NODE}" in explanation
    assert "What to do: check the name of the image" in explanation
    assert "Nothing holds it" not in explanation
    assert isinstance(troubles[0], PodTrouble)


def test_a_message_of_the_condition_is_not_repeated() -> None:
    held = Condition(type="Ready", status="False", reason="Unschedulable", message=NO_NODE)
    around = Surroundings(
        (parse_pod(unscheduled("p")),),
        warnings=select_warnings([event("FailedScheduling", "Pod", "red-a01-x", NO_NODE)], "red", "red-a01"),
    )
    explanation = explain("red", Status(state="Pending", conditions=(held,)), AT, around=around)
    assert explanation.count("0/3 nodes") == 1
    assert "What to do: ask for less, correct the selectors, or add nodes that have the resource." in explanation


def test_a_rayjob_that_kuberay_does_not_act_on_is_named() -> None:
    held = Condition(type="Ready", status="False", reason="Starting", message="attempt 1")
    alone = Status(state="Starting", conditions=(held,), children=Children(ray_job="red-a01"))
    explanation = explain("red", alone, AT)
    assert "KubeRay has not created the RayCluster of RayJob red-a01 yet. What to do: if that lasts" in explanation
    served = alone.model_copy(update={"children": Children(ray_job="red-a01", ray_cluster="red-a01-x")})
    assert "KubeRay" not in explain("red", served, AT)


def test_warnings_are_those_of_the_job_and_of_its_attempt() -> None:
    bodies = [
        event("A", "DiffusionRLJob", "red", "a"),
        event("B", "Pod", "red-a01-x-head", "b"),
        event("C", "Pod", "red", "c"),
        event("D", "RayJob", "red-a01", "d"),
        event("E", "Pod", "red-a010-x", "e"),
        event("F", "Pod", "red-b", "f"),
    ]
    assert [warning.reason for warning in select_warnings(bodies, "red", "red-a01")] == ["A", "B", "D"]


def test_a_volume_that_cannot_be_mounted_is_known_from_events_only() -> None:
    held = Condition(type="Ready", status="False", reason="Starting", message="waiting for pods")
    mount = event("FailedMount", "Pod", "red-a01-x", "volume runs is not there")
    risk = event("ResultsOnEmptyDir", "DiffusionRLJob", "red", "spec.checkpoint.claimName is not given")
    around = Surroundings(warnings=select_warnings([mount, risk], "red", "red-a01"))
    explanation = explain("red", Status(state="Starting", conditions=(held,)), AT, around=around)
    assert "claimName" not in explanation, "a risk of the results is not what a job waits for"
    assert f"Last warnings: {AT} FailedMount of Pod red-a01-x: volume runs is not there" in explanation
    assert "What to do: check that the volume exists" in explanation


def test_a_pod_that_is_refused_again_and_again_is_told_once() -> None:
    """KubeRay gives it another name each time, and its event begins otherwise than its condition."""
    text = 'is invalid: spec.dnsPolicy: Unsupported value: "x"'
    message = f'FailedCreateWorkerPod Pod "red-a01-x-worker-aaaaa" {text}'
    held = Condition(type="Ready", status="False", reason="PodsRefused", message=message)
    tries = [
        event(f"try {name}", "RayCluster", "red-a01-x", f'Failed to create worker Pod, Pod "red-a01-x-{name}" {text}')
        for name in ("bbbbb", "ccccc")
    ]
    quota = [event(f"quota {name}", "RayCluster", "red-a01-x", f'pods "x-{name}" is forbidden: q') for name in "ab"]
    around = Surroundings(warnings=select_warnings([*tries, *quota], "red", "red-a01"))
    why = explain("red", Status(state="Starting", conditions=(held,)), AT, around=around)
    assert (why.count("Unsupported value"), why.count("forbidden: q"), why.count("quota b")) == (1, 1, 1)
    assert "What to do: correct what the message names" in why


def test_what_to_do_follows_from_the_pod_that_is_not_ready() -> None:
    held = Condition(type="Ready", status="False", reason="PodsNotReady", message="head ready, workers 0/1")
    around = Surroundings((parse_pod(unscheduled("p")),))
    explanation = explain("red", Status(state="Running", conditions=(held,)), AT, around=around)
    assert "What to do: ask for less, correct the selectors" in explanation
    assert "What to do: wait" in explain("red", Status(state="Running", conditions=(held,)), AT)
    around = Surroundings((parse_pod(pod("p", phase="Pending")),))
    explanation = explain("red", Status(state="Running", conditions=(held,)), AT, around=around)
    assert f"Pod p (created {AT}): NotScheduled: no scheduler has handled it yet" in explanation
    assert "What to do: check that the scheduler of spec.scheduling.schedulerName runs" in explanation


def test_messages_cannot_control_the_terminal(server: FakeServer) -> None:
    job = make_job("blue")
    job["status"]["conditions"][0]["message"] = "\x1b]0;title\x07 \x9b2J"
    server.jobs["blue"] = job
    server.objects[EVENTS] = 200, {"items": [event("FailedMount", "DiffusionRLJob", "blue", "\x1b]0;title\x07x")]}
    explanation = server.drl("why", "blue").stdout
    assert "]0;title" in explanation
    assert explanation.replace("\n", "").isprintable(), repr(explanation)


def test_rights_that_are_missing_are_named_and_the_rest_is_told(server: FakeServer) -> None:
    job = make_job("blue")
    job["status"]["attempts"] = 1
    server.jobs["blue"] = job
    server.objects[PODS] = 403, {"message": "User u cannot list pods"}
    server.objects[EVENTS] = 200, {"items": [event("FailedMount", "Pod", "blue-a01-x", "no volume")]}
    explanation = server.drl("why", "blue").stdout
    assert "Not read: pods (GET /api/v1/namespaces/team/pods: User u cannot list pods)" in explanation
    assert "ClaimNotFound: no claim runs" in explanation
    assert "FailedMount of Pod blue-a01-x: no volume" in explanation
    assert len(explanation.splitlines()) == 1
    assert {"labelSelector": "diffusionrl.io/job=blue,diffusionrl.io/attempt=1"} in server.queries
    stray = waiting("stray", "CrashLoopBackOff")
    stray["metadata"]["ownerReferences"] = owners("other")
    server.objects[PODS] = 200, {"items": [waiting("blue-a01-x", "ErrImagePull", "no such image"), stray]}
    explanation = server.drl("why", "blue").stdout
    assert ("Pod blue-a01-x" in explanation, "stray" in explanation) == (True, False)
