"""Jobs that were stored under a definition (CRD) without a rule that the present one has."""

import copy
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.jobs import JobOnPlane
from e2e.operator_process import RunningOperator

pytestmark = pytest.mark.cluster
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/diffusionrljobs.diffusionrl.io"
WINDOW = {"start": 5, "end": 10, "size": 2}
# A rule of the spec, and one of a part of it.
SPEC_RULE = "with cps, which adds no noise in the last step"
BREAKS_SPEC = {"pipeline": {"steps": 10}, "sampler": {"type": "cps", "noiseLevel": 0.8, "window": WINDOW}}
OBEYS_SPEC = {"sampler": {"window": {**WINDOW, "end": 9}}}
PART_RULE = "the last step adds no noise to train on"
BREAKS_PART = {"pipeline": {"steps": 1}}
OBEYS_PART = {"pipeline": {"steps": 10}}


@pytest.fixture(scope="module", params=[False, True], ids=["changed-fields", "all-fields"])
def checks_all(request: pytest.FixtureRequest) -> bool:
    """Whether the API server also checks unchanged fields at each write, as Kubernetes 1.29's does."""
    return bool(request.param)


@pytest.fixture(scope="module")
def plane(plane: ControlPlane, checks_all: bool) -> Iterator[ControlPlane]:
    """The shared control plane, and one of these tests' own."""
    if not checks_all:
        yield plane
        return
    with control_plane() as started:
        yield started


@pytest.fixture(scope="module")
def installed(installed: ControlPlane, checks_all: bool) -> ControlPlane:
    """API servers that check what is changed, and all of an object."""
    if checks_all:
        with installed.api() as api:
            versions = api.get(DEFINITION)["spec"]["versions"]
            api.patch(DEFINITION, {"spec": {"versions": always_checked(versions)}})
    return installed


def always_checked(node: Any) -> Any:
    """A part of a definition whose rules of these tests are evaluated at each write.

    Since Kubernetes 1.33, an API server skips a rule of an unchanged part, unless it uses `oldSelf`.
    """
    if isinstance(node, list):
        return [always_checked(item) for item in node]
    if not isinstance(node, dict):
        return node
    message = str(node.get("messageExpression", ""))
    if any(rule in message for rule in (SPEC_RULE, PART_RULE)) and "oldSelf" not in node["rule"]:
        rule = f"({node['rule']}) && (oldSelf.hasValue() || !oldSelf.hasValue())"
        return {**node, "rule": rule, "optionalOldSelf": True}
    return {name: always_checked(part) for name, part in node.items()}


def without_rule(node: Any, rule: str) -> Any:
    """A part of a definition without a rule, and without the rules of the same object that are joined with it."""
    if isinstance(node, list):
        joined = [item for item in node if isinstance(item, dict) and rule in item.get("messageExpression", "")]
        return [without_rule(item, rule) for item in node if item not in joined]
    return {name: without_rule(part, rule) for name, part in node.items()} if isinstance(node, dict) else node


def is_accepted(job: JobOnPlane, breaks: dict[str, Any], rule: str) -> bool:
    """Whether the API server takes a spec that breaks the rule."""
    try:
        job.api.patch(job.own_path, {"spec": {"rollout": breaks}}, dryRun="All")
    except ApiError as error:
        assert error.code == httpx2.codes.UNPROCESSABLE_CONTENT and rule in str(error)
        return False
    return True


def store(api: Api, namespace: str, breaks: dict[str, Any], rule: str) -> list[JobOnPlane]:
    """Jobs that run, with a spec that was stored before there was a rule that it breaks."""
    jobs = [JobOnPlane(api, namespace, name) for name in ("ends", "stops")]
    for job in jobs:
        job.start()
    present = api.get(DEFINITION)["spec"]
    try:
        api.patch(DEFINITION, {"spec": {"versions": without_rule(copy.deepcopy(present["versions"]), rule)}})
        deadlines.wait_until(
            "the definition before the rule", deadlines.API_READY, lambda: is_accepted(jobs[0], breaks, rule)
        )
        for job in jobs:
            job.api.patch(job.own_path, {"spec": {"rollout": breaks}})
    finally:
        api.patch(DEFINITION, {"spec": {"versions": present["versions"]}})
    probe = JobOnPlane(api, namespace, "probe")
    probe.submit()
    deadlines.wait_until(
        "the definition with the rule", deadlines.API_READY, lambda: not is_accepted(probe, breaks, rule)
    )
    return jobs


def test_stored_jobs_that_break_a_new_rule_of_the_spec_end_are_suspended_and_deleted(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    ends, stops = jobs = store(api, namespace, BREAKS_SPEC, SPEC_RULE)
    for job in jobs:
        condition = job.await_condition("Updated", "False", "InvalidSpec")
        assert SPEC_RULE in condition["message"]
        api.patch(job.own_path, {"metadata": {"labels": {"team": "a"}}})
        assert job.condition("Ready")["status"] == "True"
    ends.end(1)
    ends.await_condition("Succeeded", "True")
    api.patch(stops.own_path, {"spec": {"suspend": True}})
    stops.await_condition("Suspended", "True")
    api.patch(stops.own_path, {"spec": {"rollout": OBEYS_SPEC}})
    assert not is_accepted(stops, BREAKS_SPEC, SPEC_RULE), "once it obeys the rule, it has to"
    for job in jobs:
        api.delete(job.own_path)
        job.await_gone()


def test_a_new_job_obeys_the_rules_of_the_spec_also_before_an_operator_sees_it(
    running: RunningOperator, api: Api, namespace: str
) -> None:
    with pytest.raises(ApiError, match=SPEC_RULE):
        JobOnPlane(api, namespace, spec={"rollout": {"replicas": 1, **BREAKS_SPEC}}).submit()
    unseen = JobOnPlane(api, namespace, spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    unseen.submit()
    assert unseen.status() == {"observedGeneration": -1}, "tools would take it for one that is done"
    assert not is_accepted(unseen, BREAKS_SPEC, SPEC_RULE)


def test_stored_jobs_that_break_a_new_rule_of_a_part_of_the_spec_can_be_stopped(
    running: RunningOperator, api: Api, namespace: str, checks_all: bool
) -> None:
    ends, stops = jobs = store(api, namespace, BREAKS_PART, PART_RULE)
    changes: tuple[dict[str, Any], ...] = ({"metadata": {"labels": {"team": "a"}}}, {"spec": {"suspend": True}})
    for change in changes:
        if checks_all:
            with pytest.raises(ApiError, match=PART_RULE):
                api.patch(stops.own_path, change)
        else:
            api.patch(stops.own_path, change)
    status = {"status": {"usage": {"samples": 1}}}
    if checks_all:
        with pytest.raises(ApiError, match=PART_RULE):
            api.patch(f"{stops.own_path}/status", status, dryRun="All")
        api.patch(stops.own_path, {"spec": {"suspend": True, "rollout": OBEYS_PART}})
    else:
        api.patch(f"{stops.own_path}/status", status, dryRun="All")
        condition = ends.await_condition("Updated", "False", "InvalidSpec")
        assert PART_RULE in condition["message"]
        with pytest.raises(ApiError, match=PART_RULE):
            api.patch(stops.own_path, {"spec": {"rollout": {"samplesPerPrompt": 16}}})
    stops.await_condition("Suspended", "True")
    for job in jobs:
        api.delete(job.own_path)
        job.await_gone()
