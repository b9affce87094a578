"""The RayJob of an attempt in a Kueue queue, changed for another number of rollout pods."""

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from control.plan.rendered_objects import SETTINGS, make_job
from omni_operator import plan
from omni_operator.api.names import (
    ASKED_ANNOTATION,
    CHECKSUM_ANNOTATION,
    JOB_ANNOTATION,
    PODS_ANNOTATION,
    RENDERED_ANNOTATION,
    SPEC_ANNOTATION,
)
from omni_operator.cluster.cache.object_parser import parse_rayjob
from omni_operator.reconcile.queued_attempt import change, is_as_decided
from omni_operator.status.decisions.situation import AskForPods

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUEUE = 'metadata.labels={"kueue.x-k8s.io/queue-name": team-a}'


def rendered(replicas: int, *more: str, least: int | None = 2, queue: str = QUEUE) -> dict[str, Any]:
    job = make_job(
        "spec.rollout.placement=Separate",
        f"spec.rollout.replicas={replicas}",
        queue,
        "spec.trainer.accelerator={vendor: NVIDIA, count: 2}",
        *more,
        *([f"spec.rollout.minReplicas={least}"] if least else []),
    )
    body = plan.render_attempt(job, 1, SETTINGS)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["spec"]["suspend"] = True
    return body


def asked(body: dict[str, Any], old: int, new: int) -> dict[str, Any]:
    """The RayJob after the operator has asked for another number."""
    changes = change(body, AskForPods(parse_rayjob(body), old, new, 0), NOW)
    changed = copy.deepcopy(body)
    changed["metadata"]["annotations"] |= changes["metadata"]["annotations"]
    changed["spec"]["entrypoint"] = changes["spec"]["entrypoint"]
    changed["spec"]["rayClusterSpec"] |= changes["spec"]["rayClusterSpec"]
    return changed


@pytest.mark.parametrize("more", [(), ("spec.rollout.engine.tensorParallelSize=2", "spec.trainer.replicas=2")])
def test_the_changed_rayjob_is_that_of_a_job_with_as_many_pods(more: tuple[str, ...]) -> None:
    full = rendered(12, *more)
    for number in (11, 2):
        changed = asked(full, 12, number)
        expected = rendered(number, *more)
        assert not parse_rayjob(changed).altered
        pods = json.loads(changed["metadata"]["annotations"].pop(PODS_ANNOTATION))
        wanted = json.loads(expected["metadata"]["annotations"].pop(PODS_ANNOTATION))
        assert (
            pods["rollout"] == {**wanted["rollout"], "fewest": 2, "most": 12} and pods["trainer"] == wanted["trainer"]
        )
        assert changed["metadata"]["annotations"].pop(ASKED_ANNOTATION) == "2026-01-01T00:00:00Z 0"
        for body in (changed, expected):
            for name in (RENDERED_ANNOTATION, SPEC_ANNOTATION, CHECKSUM_ANNOTATION):  # the two jobs' digests differ
                body["metadata"]["annotations"].pop(name)
            trainer, _ = body["spec"]["rayClusterSpec"]["workerGroupSpecs"]
            trainer["template"]["metadata"]["annotations"].pop(JOB_ANNOTATION)  # as its user wrote it
        assert changed == expected
        assert asked(asked(full, 12, number), number, 12)["spec"] == full["spec"]


def test_what_was_changed_is_parsed_again() -> None:
    parsed = parse_rayjob(asked(rendered(4), 4, 3))
    size = parsed.pool("rollout")
    assert size and (size.pods, size.fewest, size.most, size.least) == (3, 2, 4, 2)
    assert parsed.asked and (parsed.asked.at, parsed.asked.rounds) == (NOW, 0)


def test_only_a_suspended_rayjob_with_the_expected_numbers_is_changed() -> None:
    body = rendered(4)
    step = AskForPods(parse_rayjob(body), 4, 3, 0)
    assert is_as_decided(body, step)
    admitted, scaled, replaced, noted = (copy.deepcopy(body) for _ in range(4))
    admitted["spec"]["suspend"] = False
    scaled["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]["replicas"] = 3
    replaced["metadata"]["uid"] = "v"
    del noted["metadata"]["annotations"][PODS_ANNOTATION]
    assert not any(is_as_decided(stale, step) for stale in (admitted, scaled, replaced, noted, asked(body, 4, 3)))


@pytest.mark.parametrize(("least", "queue"), [(2, "metadata.labels={}"), (12, QUEUE), (None, QUEUE)])
def test_without_a_queue_or_a_smaller_minimum_the_number_is_fixed(least: int | None, queue: str) -> None:
    size = parse_rayjob(rendered(12, least=least, queue=queue)).pool("rollout")
    assert size is not None and not size.adjustable
