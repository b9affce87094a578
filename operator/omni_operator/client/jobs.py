"""Synchronous client of jobs, on the official kubernetes package."""

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from omni_operator.api.status import Status
from omni_operator.api.suggestions import did_you_mean
from omni_operator.cluster.cache.job_parser import keep_valid_status
from omni_operator.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    KindAbsent,
    NotFound,
    PolicyDenied,
    Refused,
    Unavailable,
)
from omni_operator.cluster.kinds import JOBS, Kind

from .connection import Connection, connect
from .kubernetes_events import Event, sort_events
from .submission import find_differences

POLL_SECONDS = 5.0
PATIENCE_SECONDS = 300.0
# DNS-1123 subdomain and label, as the API server checks them: others would be the paths of other objects.
JOB_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAMESPACE = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
UNKNOWN_FIELD = "strict decoding error"  # as the API server says it
# The built-in role `view` grants events of the core group; events.k8s.io serves the same objects.
CORE_EVENTS = Kind("", "v1", "events", "Event")


class InvalidName(ClusterError):
    """No object can have this name; nothing was requested."""


class JobNotFound(ClusterError):
    """The namespace has no job of that name."""


class JobDeleted(ClusterError):
    """The job was deleted since it was read."""


class JobFinished(ClusterError):
    """The job has succeeded or finally failed, so the change would have no effect."""


class NotScalable(ClusterError):
    """The number of the job's rollout pods follows from other fields."""


class FieldNotServed(Refused):
    """The cluster's definition of jobs does not have a field of the job; the message names it."""


class JobExists(Conflict):
    """The namespace has another job of that name, or one that is being deleted."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was read.

    Attributes:
        body: the whole object.
        status: the valid parts of its status; a newer operator may write others.
    """

    body: Mapping[str, Any]
    status: Status

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        """What tells it from a later job of the same name."""
        return str(self.body["metadata"].get("uid"))

    @property
    def created(self) -> str | None:
        """Time of creation, as Kubernetes writes it."""
        return self.body["metadata"].get("creationTimestamp")

    @property
    def deleted(self) -> str | None:
        """Time at which its deletion was requested."""
        return self.body["metadata"].get("deletionTimestamp")

    @property
    def finalizers(self) -> tuple[str, ...]:
        """What keeps it from being deleted at once."""
        return tuple(self.body["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted job, and whether the request created it or it was there already."""

    job: Job
    created: bool


class Client:
    """Jobs of one namespace. Every method raises a ClusterError if the API server refuses or does not answer.

    Raises:
        InvalidName: no namespace can have this name. Every method with the name of a job raises it for that name.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self.connection = connection
        self.namespace = _check_name("namespace", NAMESPACE, namespace)

    @classmethod
    def from_kubeconfig(
        cls, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
    ) -> Self:
        """A client with the credentials of a kubeconfig.

        Args:
            kubeconfig: default: KUBECONFIG, else ~/.kube/config; without these, in a pod, its service account.
            context: default: the current one.
            namespace: default: the context's, else `default`; with a service account, the pod's.

        Raises:
            UnusableKubeconfig: the message says why.
            InvalidName: no namespace can have this name.
        """
        return cls(*connect(kubeconfig, context, namespace))

    def list(self) -> tuple[Job, ...]:
        """All jobs of the namespace, by name."""
        with _installed():
            listing = self.connection.list(JOBS.path(self.namespace))
        return tuple(sorted(map(_job, listing), key=lambda job: job.name))

    def get(self, name: str) -> Job:
        """A job.

        Raises:
            JobNotFound: the message has the nearest name.
        """
        try:
            return _job(self._send("GET", self._path(name)))
        except NotFound as error:
            raise self._not_found(name) from error

    def submit(self, body: Mapping[str, Any], *, dry_run: bool = False) -> Submitted:
        """Create a job, unless the same job is there already.

        Args:
            body: the whole object; its namespace must be the client's, or absent.
            dry_run: the API server checks the job and stores nothing.

        Raises:
            JobExists: another job has the name; the message has the fields that differ.
            FieldNotServed: the cluster would drop a field of the job.
        """
        metadata = body.get("metadata") or {}
        name = _check_name("job", JOB_NAME, str(metadata.get("name") or ""))
        if (job_namespace := metadata.get("namespace") or self.namespace) != self.namespace:
            raise ClusterError(
                f"metadata.namespace of {name} is {job_namespace}, and this client is for {self.namespace}: "
                "nothing was created"
            )
        sent = {**body, "metadata": {**metadata, "namespace": self.namespace}}
        query = {"dryRun": "All"} if dry_run else {}
        try:
            return Submitted(_job(self._write("POST", JOBS.path(self.namespace), sent, **query)), created=True)
        except AlreadyExists:
            existing = self._get_existing(name)
        if existing.deleted:
            raise JobExists(f"{name} is being deleted since {existing.deleted}; submit it again when it is gone")
        if differences := find_differences(sent, existing.body):
            raise JobExists(
                f"namespace {self.namespace} has another job {name}: it differs in {', '.join(differences)}; "
                "submit this one under another name (--set metadata.name=NAME), or first delete the other one "
                f"(kubectl delete drl {name})"
            )
        return Submitted(existing, created=False)

    def suspend(self, name: str, *, suspended: bool = True) -> bool:
        """Set `spec.suspend` of a job, and return whether that changed it.

        Raises:
            JobNotFound: the message has the nearest name.
            JobFinished: the job has ended.
        """
        job = self._get_unfinished(name, "suspend" if suspended else "resume")
        if bool(job.body["spec"].get("suspend")) is suspended:
            return False
        self._write("PATCH", self._path(name), {"spec": {"suspend": suspended}})
        return True

    def scale(self, name: str, replicas: int) -> int:
        """Set `spec.rollout.replicas` of a job, and return what it was.

        Raises:
            JobNotFound: the message has the nearest name.
            JobFinished: the job has ended.
            NotScalable: its engines run in the trainer's pods.
        """
        job = self._get_unfinished(name, "scale")
        rollout = job.body["spec"].get("rollout") or {}
        before = int(rollout.get("replicas") or 1)
        if before == replicas:
            return before
        try:
            self._write("PATCH", self._path(name), {"spec": {"rollout": {"replicas": replicas}}})
        except Refused as error:
            if isinstance(error, Forbidden | PolicyDenied) or rollout.get("placement") == "Separate":
                raise
            raise NotScalable(
                f"{name} has no rollout pods: its engines share the trainer's accelerators, and spec.trainer says how "
                "many there are; only jobs with spec.rollout.placement: Separate can be scaled"
            ) from error
        return before

    def follow(self, name: str, *, poll: float = POLL_SECONDS, seconds: float | None = None) -> Iterator[Job]:
        """The job, read again every `poll` seconds; the last one has succeeded or finally failed.

        Once the job was read, requests that the cluster does not answer are repeated for 5 minutes, within the limit.

        Args:
            seconds: time limit; None: none.

        Raises:
            JobNotFound: the message has the nearest name.
            JobDeleted: the job was deleted meanwhile.
            TimeoutError: the message has the state of the job.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        job = self.get(name)
        while True:
            yield job
            if job.status.finished:
                return
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{name} is {job.status.state or 'not seen by an operator'} after {seconds:g} s")
            time.sleep(min(poll, left))
            job = self._read_again(job, poll, end)

    def wait(self, name: str, state: str, seconds: float, poll: float = POLL_SECONDS) -> Job:
        """The job, once it is in the state or has succeeded or finally failed; raises what `follow` raises.

        Args:
            seconds: time limit.
            poll: seconds between two requests.
        """
        for job in self.follow(name, poll=poll, seconds=seconds):
            if job.status.state == state:
                break
        return job

    def events(self, job: Job) -> tuple[Event, ...]:
        """The events about a job itself, the oldest first; the cluster keeps them for an hour by default."""
        about = f"involvedObject.name={job.name},involvedObject.uid={job.uid}"
        listing = self.connection.list(CORE_EVENTS.path(self.namespace), fieldSelector=about)
        return sort_events(listing)

    def cancel(self, job: Job | str) -> None:
        """Delete a job; its pods go too, and what is on a claim stays.

        Args:
            job: the job as it was read: a later one of that name is not deleted. Or the name of the one there is now.

        Raises:
            JobNotFound: the message has the nearest name.
            JobDeleted: the job was deleted since it was read, or deleted and created again.
        """
        job = self.get(job) if isinstance(job, str) else job
        uid = job.body["metadata"].get("uid")
        if not uid:  # without it, the request would delete whatever has the name by then
            raise ClusterError(f"the cluster's answer about {job.name} has no uid: nothing was deleted")
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            self._send("DELETE", self._path(job.name), options)
        except NotFound as error:
            raise JobDeleted(f"{job.name} was deleted already") from error
        except Conflict as error:
            raise JobDeleted(f"{job.name} was deleted, and created again: the new one was not deleted") from error

    def _get_unfinished(self, name: str, verb: str) -> Job:
        job = self.get(name)
        if job.status.finished:
            raise JobFinished(f"{name} is {job.status.state}: nothing to {verb}")
        return job

    def _read_again(self, job: Job, poll: float, end: float) -> Job:
        end = min(end, time.monotonic() + PATIENCE_SECONDS)
        while True:
            try:
                job_now = _job(self._send("GET", self._path(job.name)))
            except NotFound as error:
                raise JobDeleted(f"{job.name} was deleted") from error
            except Unavailable:
                if time.monotonic() > end:
                    raise
                time.sleep(poll)
                continue
            if job_now.uid != job.uid:
                raise JobDeleted(f"{job.name} was deleted, and created again")
            return job_now

    def _path(self, name: str) -> str:
        return JOBS.path(self.namespace, _check_name("job", JOB_NAME, name))

    def _get_existing(self, name: str) -> Job:
        """The job that keeps another one from being created under its name."""
        try:
            return self.get(name)
        except Forbidden as error:
            raise JobExists(
                f"namespace {self.namespace} has a job {name}, and you may not read it to see whether it is the same "
                f"({error}); submit this one under another name (--set metadata.name=NAME)"
            ) from error

    def _not_found(self, name: str) -> JobNotFound:
        try:
            near = did_you_mean(name, [job.name for job in self.list()])
        except ClusterError:  # without the right to list, there is no such job all the same
            near = ""
        return JobNotFound(f"no job {name!r} in namespace {self.namespace}{near}")

    def _write(self, method: str, path: str, body: Any, **query: str) -> dict[str, Any]:
        """Send what a job is to have.

        Raises:
            FieldNotServed: strict, because a cluster with an older format of jobs would drop what it does not have.
        """
        try:
            return self._send(method, path, body, fieldValidation="Strict", **query)
        except Refused as error:
            if UNKNOWN_FIELD not in str(error):
                raise
            raise FieldNotServed(
                f"{error}; nothing was changed: the definition of jobs on the cluster (CRD) is older than this drl; "
                "leave the field out, or have the operator and the definition upgraded (docs/operate/install.md)"
            ) from error

    def _send(self, method: str, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        with _installed():
            return self.connection.send(method, path, body, **query)


def _check_name(kind: str, pattern: re.Pattern[str], name: str) -> str:
    if not pattern.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a valid name of a {kind}: it consists of lower-case letters, digits, '-' and, for a job, "
            "'.', with a letter or a digit at both ends"
        )
    return name


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except KindAbsent as error:
        raise KindAbsent(
            f"the cluster has no DiffusionRLJob in {JOBS.api_version}: the operator is not installed, or the version "
            "of its jobs differs from drl's (docs/operate/install.md)"
        ) from error


def _job(body: dict[str, Any]) -> Job:
    """Raises Unavailable if the body is not a job."""
    metadata = body.get("metadata")
    spec = body.get("spec")
    if not (isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and isinstance(spec, dict)):
        raise Unavailable(f"the cluster's answer is not a job: it has the fields {', '.join(sorted(body))}")
    return Job(body, _read_status(body.get("status")))


def _read_status(given: Any) -> Status:
    """The valid parts of a status, and its state also if this version does not have the word."""
    status = keep_valid_status(given)
    state = given.get("state") if isinstance(given, dict) else None
    return status if status.state or not isinstance(state, str) else status.model_copy(update={"state": state})
