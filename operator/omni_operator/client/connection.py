"""Requests to the API server with the credentials of a kubeconfig."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, new_client_from_config
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from omni_operator.api.suggestions import did_you_mean
from omni_operator.cluster.errors import Unavailable, error_of

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 64 * 1024
SHOWN_BYTES = 80  # of an answer that cannot be used
MERGE = "application/merge-patch+json"


class UnusableKubeconfig(RuntimeError):
    """There is no kubeconfig, or it cannot be used, or it has no such context."""


class Connection:
    """Requests as one user. Every method raises a ClusterError if the API server refuses or does not answer."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    def send(self, method: str, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        """The object in the answer to a request.

        Raises:
            Unavailable: also if the answer is a success without an object, as of a proxy that asks for a login.
        """
        headers = {"Accept": "application/json", "Content-Type": MERGE if method == "PATCH" else "application/json"}
        answer = self._open(method, path, query, TIMEOUT_SECONDS, headers, body)
        text = self._read(answer, path)
        return _parse(text) or self._refuse(f"{method} {path}", text)

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        """The objects of a list; raises what `send` raises."""
        found = self.send("GET", path, **query)
        if "items" not in found:
            self._refuse(f"GET {path}", json.dumps(found).encode())
        return list(found["items"] or ())

    @staticmethod
    def _refuse(what: str, text: bytes) -> NoReturn:
        begin = text[:SHOWN_BYTES].decode("utf-8", "replace")
        raise Unavailable(
            f"the answer is not one of Kubernetes: {what}: {begin!r}; check the server and the proxy of the kubeconfig"
        )

    def lines(self, path: str, silence: float, **query: str) -> Iterator[str]:
        """The lines of a text, as they arrive; a last one without an end is a line too.

        Args:
            silence: seconds after which a text that does not go on is Unavailable.
        """
        answer = self._open("GET", path, query, (TIMEOUT_SECONDS, silence), {"Accept": "*/*"})
        rest = b""
        try:
            for chunk in answer.response.stream(CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "replace")
        except HTTPError as error:
            raise Unavailable(f"the answer broke off: GET {path}: {error}") from error
        finally:
            answer.response.close()
        if rest:
            yield rest.decode("utf-8", "replace")

    def _open(
        self, method: str, path: str, query: Mapping[str, str], timeout: Any, headers: dict[str, str], body: Any = None
    ) -> Any:
        """The answer, whose content is not read yet, if it is a success."""
        what = f"{method} {path}"
        request = self.client.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            answer = self.client.call_api(*request, _request_timeout=timeout)
        except (HTTPError, ApiException) as error:  # the package reports errors of TLS as an ApiException
            raise Unavailable(f"no answer from the cluster: {what}: {error}") from error
        if answer.status < 300:
            return answer
        raise error_of(answer.status, _parse(self._read(answer, what)), what)

    @staticmethod
    def _read(answer: Any, what: str) -> bytes:
        try:
            return bytes(answer.read())
        except HTTPError as error:
            raise Unavailable(f"the answer broke off: {what}: {error}") from error


def _parse(text: bytes) -> dict[str, Any]:
    """The JSON object in an answer; empty if it is something else."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def connect(
    kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
) -> tuple[Connection, str]:
    """A connection with the credentials of a kubeconfig, and the namespace to use.

    Args:
        kubeconfig: default: KUBECONFIG, else ~/.kube/config.
        context: default: the current one.
        namespace: default: that of the context, else `default`.

    Raises:
        UnusableKubeconfig: the message says why.
    """
    # The package reads the variable only when it is imported, which in a notebook may be long before.
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")
    configuration = Configuration()
    configuration.retries = False
    try:
        contexts, current = list_kube_config_contexts(config_file=kubeconfig)
        names = [found["name"] for found in contexts]
        if context is not None and context not in names:
            raise UnusableKubeconfig(
                f"no context {context!r} in the kubeconfig{did_you_mean(context, names)}; it has: {', '.join(names)}"
            )
        chosen = next(found for found in contexts if found["name"] == (context or current["name"]))
        client = new_client_from_config(kubeconfig, context, persist_config=False, client_configuration=configuration)
        user = chosen["context"].get("user")
    except (ConfigException, OSError, YAMLError, ValueError, TypeError, AttributeError) as error:
        raise UnusableKubeconfig(
            f"cannot use the kubeconfig: {error}; set KUBECONFIG, or give --kubeconfig FILE"
        ) from error
    if user and not configuration.api_key and not configuration.cert_file:
        raise UnusableKubeconfig(
            f"cannot use the kubeconfig: user {user!r} has no credentials; if it has an exec plug-in, run its command "
            "to see why it fails"
        )
    # An empty one is no default: in a script it is a variable that is not set.
    given = chosen["context"].get("namespace") or "default" if namespace is None else namespace
    return Connection(client), given
