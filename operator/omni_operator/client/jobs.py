"""Synchronous client of jobs, on the official kubernetes package."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, new_client_from_config
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from omni_operator.api.status import Status
from omni_operator.api.suggestions import did_you_mean
from omni_operator.cluster.errors import ClusterError, KindAbsent, NotFound, Unavailable, error_of
from omni_operator.cluster.kinds import JOBS

TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 5.0
MERGE = "application/merge-patch+json"


class UnusableKubeconfig(RuntimeError):
    """There is no kubeconfig, or it cannot be used, or it has no such context."""


class JobNotFound(ClusterError):
    """The namespace has no job of that name."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was read.

    Attributes:
        body: the whole object. status: its status, parsed.
    """

    body: Mapping[str, Any]
    status: Status

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def created(self) -> str | None:
        """Time of creation, as Kubernetes writes it."""
        return self.body["metadata"].get("creationTimestamp")

    @property
    def deleted(self) -> str | None:
        """Time at which its deletion was requested."""
        return self.body["metadata"].get("deletionTimestamp")


class Client:
    """Jobs of one namespace. Every method raises a ClusterError if the API server refuses or does not answer."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client, self.namespace = client, namespace

    @classmethod
    def from_kubeconfig(
        cls, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
    ) -> Client:
        """A client with the credentials of a kubeconfig.

        Args:
            kubeconfig: default: KUBECONFIG, else ~/.kube/config.
            context: default: the current one.
            namespace: default: that of the context, else `default`.

        Raises:
            UnusableKubeconfig: the message says why.
        """
        configuration = Configuration()
        configuration.retries = False
        try:
            contexts, current = list_kube_config_contexts(config_file=kubeconfig)
            names = [found["name"] for found in contexts]
            if context is not None and context not in names:
                raise UnusableKubeconfig(
                    f"no context {context!r} in the kubeconfig{did_you_mean(context, names)}; "
                    f"it has: {', '.join(names)}"
                )
            chosen = next(found for found in contexts if found["name"] == (context or current["name"]))
            client = new_client_from_config(
                kubeconfig, context, persist_config=False, client_configuration=configuration
            )
        except (ConfigException, OSError, YAMLError, ValueError, TypeError, AttributeError) as error:
            raise UnusableKubeconfig(
                f"cannot use the kubeconfig: {error}; set KUBECONFIG, or give --kubeconfig FILE"
            ) from error
        return cls(client, namespace or chosen["context"].get("namespace") or "default")

    def list(self) -> tuple[Job, ...]:
        """All jobs of the namespace, by name."""
        found = self._send("GET", JOBS.path(self.namespace))["items"]
        return tuple(sorted(map(_job, found), key=lambda job: job.name))

    def get(self, name: str) -> Job:
        """A job.

        Raises:
            JobNotFound: the message has the nearest name.
        """
        try:
            return _job(self._send("GET", JOBS.path(self.namespace, name)))
        except NotFound as error:
            raise self._not_found(name) from error

    def suspend(self, name: str, *, suspended: bool = True) -> bool:
        """Set `spec.suspend` of a job, and return whether that changed it.

        Raises:
            JobNotFound: the message has the nearest name.
        """
        if bool(self.get(name).body["spec"].get("suspend")) is suspended:
            return False
        self._send("PATCH", JOBS.path(self.namespace, name), {"spec": {"suspend": suspended}})
        return True

    def wait(self, name: str, state: str, seconds: float, poll: float = POLL_SECONDS) -> Job:
        """The job, once it is in the state or has succeeded or finally failed.

        Args:
            seconds: time limit. poll: seconds between two requests.

        Raises:
            JobNotFound: the message has the nearest name.
            TimeoutError: the message has the state of the job.
        """
        end = time.monotonic() + seconds
        while True:
            job = self.get(name)
            if job.status.state == state or job.status.finished:
                return job
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{name} is {job.status.state or 'not seen by an operator'} after {seconds:g} s")
            time.sleep(min(poll, left))

    def cancel(self, name: str) -> None:
        """Delete a job; its pods go too, and what is on a claim stays.

        Raises:
            JobNotFound: the message has the nearest name.
            Conflict: the job was deleted and created again in the meantime.
        """
        uid = self.get(name).body["metadata"].get("uid")
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        self._send("DELETE", JOBS.path(self.namespace, name), options)

    def _not_found(self, name: str) -> JobNotFound:
        near = did_you_mean(name, [job.name for job in self.list()])
        return JobNotFound(f"no job {name!r} in namespace {self.namespace}{near}")

    def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        what = f"{method} {path}"
        headers = {"Accept": "application/json", "Content-Type": MERGE if method == "PATCH" else "application/json"}
        request = self._client.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            code, text = answer.status, answer.read()
        except (HTTPError, ApiException) as error:  # the package reports errors of TLS as an ApiException
            raise Unavailable(f"no answer from the cluster: {what}: {error}") from error
        try:
            content: dict[str, Any] = json.loads(text)
        except ValueError:
            content = {}
        if code < 300:
            return content
        failure = error_of(code, content, what)
        if isinstance(failure, KindAbsent):
            raise KindAbsent(
                "the cluster has no DiffusionRLJob: the operator is not installed (docs/install.md)"
            ) from failure
        raise failure


def _job(body: dict[str, Any]) -> Job:
    return Job(body, Status.model_validate(body.get("status") or {}))
