"""The objects that are rendered for a job, and the parts of them that tests read."""

from typing import Any

from control.api.small_job import GOOD
from omni_operator import plan
from omni_operator.api import DiffusionRLJob, read_job
from omni_operator.api.crd import definition
from omni_operator.api.validation_messages import format_path

SPEC = definition.schema()["properties"]["spec"]
SETTINGS = plan.ClusterSettings(image="rollout:1", report_url="http://operator.ns:8081")


def make_job(*assignments: str) -> DiffusionRLJob:
    """The smallest job with assignments, as `drl --set` takes them."""
    return read_job(GOOD, "job.yaml", assignments).job


def by_kind(job: DiffusionRLJob, settings: plan.ClusterSettings = SETTINGS, attempt: int = 1) -> dict[str, Any]:
    return {body["kind"]: body for body in plan.render_objects(job, attempt, settings)}


def ray_job(job: DiffusionRLJob, settings: plan.ClusterSettings = SETTINGS) -> dict[str, Any]:
    return by_kind(job, settings)["RayJob"]


def workers(job: DiffusionRLJob) -> dict[str, Any]:
    (group,) = ray_job(job)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return group


def groups(job: DiffusionRLJob) -> list[dict[str, Any]]:
    """The worker groups, the trainer's first."""
    return ray_job(job)["spec"]["rayClusterSpec"]["workerGroupSpecs"]


def pod_settings(job: DiffusionRLJob) -> dict[str, Any]:
    """The trainer's settings in pods."""
    return dict(plan.render_settings(*plan.resolve_for_pods(job)))


def ray(**fields: Any) -> dict[str, Any]:
    """The spec of a pod template with fields of Ray's container."""
    return {"containers": [{"name": "ray", **fields}]}


def refusals(job: DiffusionRLJob, settings: plan.ClusterSettings = SETTINGS) -> list[str]:
    return [f"{format_path(refusal.at)}: {refusal.text}" for refusal in plan.find_refusals(job, settings)]


def pod(group: dict[str, Any]) -> dict[str, Any]:
    return group["template"]["spec"]


def env(group: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod(group)["containers"][0]["env"]}
