"""PURE: pod template that head and workers share."""

from collections.abc import Mapping, Sequence
from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.spec.pod_template import drop_nulls
from omni_operator.api.spec.pods import Resources
from omni_operator.plan.cluster_settings import ClusterSettings

from . import quantity
from .merge import merge_templates

Object = dict[str, Any]
CONTAINER = "ray"
USER = 1000  # user of the project's images and of Ray's
SHARED_MEMORY = "shared-memory"
METRICS_PORT = 8080  # KubeRay adds it to each Ray container, by the name `metrics`
STOP_SECONDS = 30  # for Ray to end after the hook of its pod: the default of Kubernetes


def render_pod_template(
    job: DiffusionRLJob,
    settings: ClusterSettings,
    *,
    labels: Mapping[str, str],
    env: Sequence[Object],
    resources: Resources,
    default_requests: Mapping[str, str],
    shared_memory: str,
    probe: Object,
) -> Object:
    """Pod template with one container and the settings of every pod of a job.

    Args:
        default_requests: requests of a job that names none.
        shared_memory: size of /dev/shm.
    """
    runtime = job.spec.runtime
    scheduling = job.spec.scheduling
    container = {
        "name": CONTAINER,
        "image": runtime.image or settings.image,
        "imagePullPolicy": runtime.image_pull_policy,
        **({"env": list(env)} if env else {}),
        # Ready soon, and tolerant of slow answers while busy.
        "readinessProbe": {
            "httpGet": probe,
            "initialDelaySeconds": 1,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 60,
        },
        "resources": add_shared_memory(resources, default_requests, shared_memory),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}],
    }
    spec: Object = {
        "automountServiceAccountToken": False,  # no program in the pod uses the API server
        "containers": [container],
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}}],
    }
    runtime_fields = {
        "imagePullSecrets": [{"name": secret.name} for secret in runtime.image_pull_secrets],
        "serviceAccountName": runtime.service_account_name,
        "schedulerName": scheduling.scheduler_name,
        "priorityClassName": scheduling.priority_class_name,
    }
    spec |= {name: value for name, value in runtime_fields.items() if value}
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def volume(name: str, claim: str | None) -> Object:
    """A volume with the claim, or an emptyDir, which is deleted with the pod."""
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}} if claim else {"name": name, "emptyDir": {}}


def add_shared_memory(resources: Resources, default_requests: Mapping[str, str], size: str) -> Object:
    """Requests and limits with the size of shared memory added, because it counts as the container's memory."""
    with_requests: Object = {"requests": {**default_requests, **resources.requests}}
    if resources.limits:
        with_requests["limits"] = dict(resources.limits)
        # Like the API server: a limit without a request is also the request.
        for name, value in resources.limits.items():
            if name not in resources.requests:
                with_requests["requests"][name] = value
    for amounts in with_requests.values():
        if "memory" in amounts:
            amounts["memory"] = quantity.add(amounts["memory"], size)
    return with_requests


def pre_stop(program: str, seconds: int) -> Object:
    """A preStop hook that runs a program of the image for at most `seconds` before a deleted pod ends."""
    command = ["python3", "-m", program, str(seconds)]
    return {
        "spec": {
            "containers": [{"name": CONTAINER, "lifecycle": {"preStop": {"exec": {"command": command}}}}],
            "terminationGracePeriodSeconds": seconds + STOP_SECONDS,
        }
    }


def secret_env(variable: str, name: str, key: str) -> Object:
    """An environment variable with the value of a Secret's key."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def container_of_template(patch: Mapping[str, Any]) -> Object:
    """What the user's template says about the container; empty if nothing."""
    spec: Mapping[str, Any] = drop_nulls(patch).get("spec", {})
    return next((entry for entry in spec.get("containers", ()) if entry["name"] == CONTAINER), {})


def image_of_template(patch: Mapping[str, Any]) -> str | None:
    """The image that the user's template gives to the container."""
    return container_of_template(patch).get("image")


def variables_of_template(patch: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables that the user's template gives to the container; None: the value comes from elsewhere."""
    return {entry["name"]: entry.get("value") for entry in container_of_template(patch).get("env", ())}


def apply_user_template(template: Object, patch: Object, labels: Mapping[str, str]) -> Object:
    """Merge the user's template; fields that the operator depends on stay, and added containers are confined."""
    if not patch:
        return template
    merged: Object = drop_nulls(merge_templates(template, patch))
    merged["metadata"]["labels"] |= labels
    for kind in ("containers", "initContainers"):
        for added in merged["spec"].get(kind, ()):
            _confine(added.setdefault("securityContext", {}))
    containers = merged["spec"]["containers"]
    # KubeRay expects Ray in the first container.
    merged["spec"]["containers"] = sorted(containers, key=lambda container: container["name"] != CONTAINER)
    # A restarted container would run the job a second time, unnoticed.
    merged["spec"]["restartPolicy"] = "Never"
    return merged


def _confine(security: Object) -> None:
    """Defaults of Pod Security `restricted` that a container has to state itself."""
    if security.get("privileged"):
        security.pop("allowPrivilegeEscalation", None)  # privileged containers cannot be without it
    else:
        security.setdefault("allowPrivilegeEscalation", False)
    security.setdefault("capabilities", {}).setdefault("drop", ["ALL"])
