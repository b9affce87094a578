"""Image of the short-lived pod of `drl fetch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_operator.api.names import TRAINER_GROUP
from omni_operator.cluster.cache.object_parser import owner_of
from omni_operator.cluster.errors import ClusterError
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Body
from omni_operator.plan.pods.containers import CONTAINER

from .jobs import Client, Job
from .operator_settings import AmbiguousOperator, SettingsUnreadable, read_operator_settings


class ImageUnknown(Exception):
    """No image is known; the message says why."""


def find_image(client: Client, job: Job) -> str:
    """The image that a job names, else the one that its last attempt ran, else the operator's default.

    Raises:
        ImageUnknown: there is none of these.
    """
    image = (job.body["spec"].get("runtime") or {}).get("image") or _read_image_of_attempt(client, job)
    if image:
        return str(image)
    try:
        default_image = read_operator_settings(client.connection, client.namespace).image
    except (SettingsUnreadable, AmbiguousOperator) as error:
        raise ImageUnknown(f", and the operator's default image is not known ({error})") from error
    if not default_image:
        raise ImageUnknown("")
    return default_image


def _read_image_of_attempt(client: Client, job: Job) -> str | None:
    """The trainer's image in the RayJob of the last attempt; None if it is gone, or the user may not read it."""
    name = job.status.children.ray_job
    if not name:
        return None
    try:
        body = client.connection.send("GET", RAYJOBS.path(client.namespace, name))
    except ClusterError:
        return None
    owner = owner_of(body)
    return trainer_image(body) if owner and (owner.kind, owner.uid) == (JOBS.kind, job.uid) else None


def trainer_image(rayjob: Body) -> str | None:
    """PURE: the image of the trainer pods of a RayJob."""
    groups: list[Mapping[str, Any]] = rayjob["spec"].get("rayClusterSpec", {}).get("workerGroupSpecs") or []
    for group in groups:
        if group.get("groupName") == TRAINER_GROUP:
            for container in group["template"]["spec"]["containers"]:
                if container["name"] == CONTAINER:
                    return container.get("image")
    return None
