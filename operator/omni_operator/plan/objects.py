"""PURE: a job -> every object that the operator applies for it, in order."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from omni_operator.api import API_VERSION, KIND, DiffusionRLJob
from omni_operator.api.names import RENDERED_ANNOTATION, Names

from .cluster_settings import ClusterSettings
from .entrypoint import JOB, OVERRIDES, render_pod_overrides, resolve_for_pods
from .network_policy import render_network_policy
from .pod_monitor import render_pod_monitor
from .rayjob import render_ray_job
from .service import render_head_service

Object = dict[str, Any]


def render_objects(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> list[Object]:
    """All of them, in the order to apply."""
    return [*render_job_objects(job, settings), *render_attempt_objects(job, attempt, settings)]


def render_job_objects(job: DiffusionRLJob, settings: ClusterSettings) -> list[Object]:
    """What lives as long as the job and is the operator's alone: kept as rendered."""
    labels = Names(job.metadata.name).labels()
    made = [render_head_service(job), render_network_policy(job, settings), render_pod_monitor(job)]
    return [_complete(body, job, labels) for body in made if body is not None]


def render_attempt_objects(job: DiffusionRLJob, attempt: int, settings: ClusterSettings) -> list[Object]:
    """What one attempt consists of: the ConfigMap, then the RayJob, which is applied once and then left alone."""
    labels = Names(job.metadata.name).attempt_labels(attempt)
    return [
        _complete(body, job, labels)
        for body in (render_config_map(job, attempt), render_ray_job(job, attempt, settings))
    ]


def render_config_map(job: DiffusionRLJob, attempt: int) -> Object:
    """The job and its overrides as the attempt was started with, for the run folder.

    Not marked immutable: where its RayJob is refused (no KubeRay, a quota) and the spec is changed meanwhile, the
    attempt is made from the changed spec, and this with it.
    """
    spec, layout = resolve_for_pods(job)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.metadata.name},
        "spec": spec.spec.model_dump(by_alias=True, mode="json", exclude_defaults=True),
    }
    lines = [f"# Attempt {attempt}, in {layout.run_folder}.\n", dump_yaml(document)]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": Names(job.metadata.name).config(attempt)},
        "data": {JOB: "".join(lines), OVERRIDES: "".join(f"{line}\n" for line in render_pod_overrides(job))},
    }


def compute_digest(body: Object) -> str:
    """Of an object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def dump_yaml(*bodies: Object) -> str:
    """YAML; several objects are several documents."""
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 4096
    yaml.explicit_start = len(bodies) > 1
    yaml.representer.ignore_aliases = lambda data: True
    yaml.dump_all(map(_readable, bodies), stream)
    return stream.getvalue()


def _readable(value: Any) -> Any:
    """Texts of several lines as such."""
    match value:
        case dict():
            return {name: _readable(item) for name, item in value.items()}
        case list():
            return [_readable(item) for item in value]
        case str() if "\n" in value:
            return LiteralScalarString(value)
        case _:
            return value


def _complete(body: Object, job: DiffusionRLJob, labels: dict[str, str]) -> Object:
    """With namespace, labels, owner and the digest of all that."""
    metadata = body["metadata"]
    metadata["namespace"] = job.metadata.namespace or "default"
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    if job.metadata.uid:
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.metadata.name, "uid": job.metadata.uid}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    metadata["annotations"] = {**metadata.get("annotations", {}), RENDERED_ANNOTATION: compute_digest(body)}
    return body
