"""Jobs that were stored under a definition (CRD) without a rule that the present one has."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api, ApiError
from e2e.jobs import JobOnPlane
from e2e.operator_process import RunningOperator

pytestmark = pytest.mark.cluster
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/diffusionrljobs.diffusionrl.io"
RULE = "with cps, which adds no noise in the last step"
WINDOW = {"start": 5, "end": 10, "size": 2}
BREAKS = {"pipeline": {"steps": 10}, "sampler": {"type": "cps", "noiseLevel": 0.8, "window": WINDOW}}


def without_rule(node: Any) -> Any:
    """A part of a definition without the rule, and without those of the same object, which are joined with it."""
    if isinstance(node, list):
        rules = [item for item in node if isinstance(item, dict) and RULE in item.get("messageExpression", "")]
        return [without_rule(item) for item in node if item not in rules]
    return {name: without_rule(part) for name, part in node.items()} if isinstance(node, dict) else node


def is_accepted(job: JobOnPlane) -> bool:
    """Whether the API server takes a spec that breaks the rule."""
    try:
        job.api.patch(job.own_path, {"spec": {"rollout": BREAKS}}, dryRun="All")
    except ApiError as error:
        assert error.code == httpx.codes.UNPROCESSABLE_ENTITY and RULE in str(error)
        return False
    return True


@pytest.fixture
def stored(running: RunningOperator, api: Api, namespace: str) -> list[JobOnPlane]:
    """Jobs that run, with a spec that was stored before there was a rule that it breaks."""
    jobs = [JobOnPlane(api, namespace, name) for name in ("ends", "stops")]
    for job in jobs:
        job.start()
    present = api.get(DEFINITION)["spec"]
    try:
        api.patch(DEFINITION, {"spec": {"versions": without_rule(copy.deepcopy(present["versions"]))}})
        deadlines.wait_until("the definition before the rule", deadlines.API_READY, lambda: is_accepted(jobs[0]))
        for job in jobs:
            job.api.patch(job.own_path, {"spec": {"rollout": BREAKS}})
    finally:
        api.patch(DEFINITION, {"spec": {"versions": present["versions"]}})
    probe = JobOnPlane(api, namespace, "probe")
    probe.submit()
    deadlines.wait_until("the definition with the rule", deadlines.API_READY, lambda: not is_accepted(probe))
    return jobs


def test_stored_jobs_that_break_a_new_rule_end_are_suspended_and_deleted(stored: list[JobOnPlane]) -> None:
    ends, stops = stored
    for job in stored:
        told = job.await_condition("Updated", "False", "InvalidSpec")
        assert RULE in told["message"]
        job.api.patch(job.own_path, {"metadata": {"labels": {"team": "a"}}})
        assert job.condition("Ready")["status"] == "True"
    ends.end(1)
    ends.await_condition("Succeeded", "True")
    with pytest.raises(ApiError, match=RULE):  # each change of the spec is checked as a whole
        stops.api.patch(stops.own_path, {"spec": {"suspend": True}})
    corrected = {"sampler": {"window": {**WINDOW, "end": 9}}}
    stops.api.patch(stops.own_path, {"spec": {"suspend": True, "rollout": corrected}})
    stops.await_condition("Suspended", "True")
    for job in stored:
        job.api.delete(job.own_path)
        job.await_gone()
