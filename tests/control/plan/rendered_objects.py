"""The objects that are rendered for a job, and the parts of them that tests read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.api.crd import definition
from omni_operator.api.validation_messages import format_path

MakeJob = Callable[..., DiffusionRLJob]
SPEC = definition.schema()["properties"]["spec"]
SETTINGS = plan.ClusterSettings(image="rollout:1", report_url="http://operator.ns:8081")


def by_kind(job: DiffusionRLJob, settings: plan.ClusterSettings = SETTINGS, attempt: int = 1) -> dict[str, Any]:
    return {body["kind"]: body for body in plan.render_objects(job, attempt, settings)}


def ray_job(job: DiffusionRLJob, settings: plan.ClusterSettings = SETTINGS) -> dict[str, Any]:
    body: dict[str, Any] = by_kind(job, settings)["RayJob"]
    return body


def workers(job: DiffusionRLJob) -> dict[str, Any]:
    (group,) = ray_job(job)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert isinstance(group, dict)
    return group


def groups(job: DiffusionRLJob) -> list[dict[str, Any]]:
    """The worker groups, the trainer's first."""
    specs: list[dict[str, Any]] = ray_job(job)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return specs


def refusals(job: DiffusionRLJob, settings: plan.ClusterSettings = SETTINGS) -> list[str]:
    return [f"{format_path(refusal.at)}: {refusal.text}" for refusal in plan.find_refusals(job, settings)]


def pod(group: dict[str, Any]) -> dict[str, Any]:
    spec = group["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def env(group: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod(group)["containers"][0]["env"]}
