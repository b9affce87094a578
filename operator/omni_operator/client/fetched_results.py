"""Results of a run from a cluster: report, samples, adapter, checkpoints."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_operator.api.names import TRAINER_GROUP
from omni_operator.cluster.cache.object_parser import owner_of, parse_pod
from omni_operator.cluster.errors import ClusterError, NotFound
from omni_operator.cluster.kinds import JOBS, PODS, RAYJOBS, Body
from omni_operator.plan.pods.containers import CONTAINER

from .archive import BrokenArchive, UnsafeArchive, check_folder, staging, unpack
from .explanation import find_pod_troubles
from .fetch_pod import render_fetch_pod
from .job_pods import RunPlace, run_place
from .jobs import Client, Job
from .operator_settings import AmbiguousOperator, SettingsUnreadable, read_operator_settings
from .pod_logs import find_pods
from .websockets import CommandOutput

PROGRAM = Path(__file__).with_name("send_run.py")
START_SECONDS = 180.0
POLL_SECONDS = 1.0


class CannotFetch(ClusterError):
    """The results of the job cannot be fetched; the message says why."""


class ImageUnknown(Exception):
    """No image is known; the message says why."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched: the folder and the names of its new files."""

    folder: Path
    files: tuple[str, ...]


def fetch(
    client: Client,
    job: Job,
    folder: Path,
    image: str | None = None,
    *,
    checkpoints: bool = False,
    only: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Fetched:
    """Copy results of a run into a folder, from a running pod of the job or a short-lived one that mounts its claim.

    Args:
        image: image of the short-lived pod. None: the job's image, or the image of its last attempt, or the operator's
            default if its settings are readable.
        checkpoints: all complete checkpoints, with the state to resume from, and all adapters; else only the newest.
        only: copy this file of the run folder and nothing else, such as `report.html`.
        note: called with what takes time.

    Raises:
        FolderTaken: the folder has other files.
        CannotFetch: there is neither a pod nor a claim, or the pod does not start, or its archive is unsafe or broken;
            or `only` is not there.
    """
    owner = {"job": job.name, "namespace": client.namespace, "uid": job.uid}
    check_folder(folder, owner)
    run = run_place(job.body)
    if run is None:
        raise CannotFetch(f"this version of drl cannot read the spec of {job.name}")
    with _source_pod(client, job, run, image, note) as pod, staging(folder, owner) as staged:
        what = only or ("checkpoints" if checkpoints else "results")
        command = ["python3", "-c", PROGRAM.read_text(encoding="utf-8"), run.path, what]
        output = CommandOutput(client.connection, client.namespace, pod, CONTAINER, command)
        try:
            try:
                names = unpack(output, staged)
            except BrokenArchive as error:
                output.finish()  # raises the command's own error, if there is one
                raise CannotFetch(f"pod {pod}: {error}") from error
            output.finish()
        except UnsafeArchive as error:
            raise CannotFetch(f"pod {pod} sent an unsafe archive, nothing was kept: {error}") from error
        finally:
            output.close()
        if only and not names:
            raise CannotFetch(f"{run.path} has no {only}{' yet' if not job.status.finished else ''}")
    return Fetched(folder, tuple(names))


@contextmanager
def _source_pod(
    client: Client, job: Job, place: RunPlace, image: str | None, note: Callable[[str], None]
) -> Iterator[str]:
    """The name of a pod that has the run folder; one that was made for it is deleted at the end."""
    running = [pod for pod in find_pods(client, job) if pod.role == TRAINER_GROUP and pod.runs]
    if running:
        yield running[0].name
        return
    if place.claim is None:
        raise CannotFetch(f"{job.name} has no running pod, and {place.describe_log()}")
    try:
        image = image or find_image(client, job)
    except ImageUnknown as error:
        raise CannotFetch(
            f"{job.name} has no running pod and names no image{error}; give --image IMAGE with python3 in it"
        ) from error
    pod = render_fetch_pod(job.body, place, image)
    created = client.connection.send("POST", PODS.path(client.namespace), pod)
    name = str(created["metadata"]["name"])
    note(f"no pod of {job.name} runs: pod {name} with image {image} mounts the claim {place.claim}")
    try:
        _await_running(client, name, note)
        yield name
    except ClusterError as error:
        _delete(client, name, f"{error}; ")
        raise
    except BaseException:
        _delete(client, name)
        raise
    _delete(client, name)


def _await_running(client: Client, name: str, note: Callable[[str], None]) -> None:
    end = time.monotonic() + START_SECONDS
    told = ""
    while True:
        body = client.connection.send("GET", PODS.path(client.namespace, name))
        phase = (body.get("status") or {}).get("phase")
        if phase == "Running":
            return
        troubles = find_pod_troubles((parse_pod(body),))
        reasons = "; ".join(f"{trouble.reason}: {trouble.text}" for trouble in troubles)
        if phase in ("Succeeded", "Failed") or time.monotonic() > end:
            raise CannotFetch(f"pod {name} does not start: {reasons or f'its phase is {phase}'}")
        if reasons not in ("", told):  # a new node or a slow volume may still end it
            note(f"pod {name} does not run yet: {reasons}; waiting up to {START_SECONDS:.0f} s")
            told = reasons
        time.sleep(POLL_SECONDS)


def _delete(client: Client, name: str, before: str = "") -> None:
    """Delete the pod; if that fails too, the error begins with what went wrong before."""
    try:
        client.connection.send("DELETE", PODS.path(client.namespace, name), {"gracePeriodSeconds": 0})
    except NotFound:
        return
    except ClusterError as error:
        raise CannotFetch(f"{before}pod {name} could not be deleted, delete it yourself: {error}") from error


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
    """The image of the trainer pods of a RayJob."""
    groups: list[Mapping[str, Any]] = rayjob["spec"].get("rayClusterSpec", {}).get("workerGroupSpecs") or []
    for group in groups:
        if group.get("groupName") == TRAINER_GROUP:
            for container in group["template"]["spec"]["containers"]:
                if container["name"] == CONTAINER:
                    return container.get("image")
    return None
