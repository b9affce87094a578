"""Requests to the API server with the credentials of a kubeconfig."""

import json
import logging
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, new_client_from_config
from kubernetes.config.incluster_config import InClusterConfigLoader
from typing_extensions import override
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context
from yaml import YAMLError

from omni_operator.api.names import SERVICE_ACCOUNT
from omni_operator.api.suggestions import did_you_mean
from omni_operator.cluster.errors import Unavailable, error_of
from omni_operator.cluster.nested_json import load_json

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 64 * 1024
SHOWN_BYTES = 80  # how much of an unusable answer an error shows
MERGE = "application/merge-patch+json"
DEFAULT_FILE = "~/.kube/config"
POD_FILES = Path(SERVICE_ACCOUNT)
UNAUTHORIZED = 401
REACH = "check the server of the kubeconfig, VPN and proxy"
LOG_IN = "log in again, or get a new kubeconfig: its token or certificate may be expired, or of another cluster"
GIVE_FILE = "set KUBECONFIG, or give --kubeconfig FILE"
GIVE_OTHER = f"{GIVE_FILE} or --context NAME"


class UnusableKubeconfig(RuntimeError):
    """There is no kubeconfig, or it cannot be used, or it has no such context."""


class Connection:
    """Requests as one user. Every method raises a ClusterError if the API server refuses or does not answer."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client
        # As kubectl: Python 3.13 refuses CAs without key identifiers, which clusters have.
        pool_options = client.rest_client.pool_manager.connection_pool_kw
        pool_options["ssl_context"] = create_urllib3_context(cert_reqs=pool_options["cert_reqs"])
        pool_options["ssl_context"].verify_flags &= ~ssl.VERIFY_X509_STRICT

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
        listing = self.send("GET", path, **query)
        if "items" not in listing:
            self._refuse(f"GET {path}", json.dumps(listing).encode())
        return list(listing["items"] or ())

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
        unfinished = b""
        try:
            for chunk in answer.response.stream(CHUNK_BYTES):
                *lines, unfinished = (unfinished + chunk).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "replace")
        except HTTPError as error:
            raise Unavailable(f"the answer broke off: GET {path}: {error}") from error
        finally:
            answer.response.close()
        if unfinished:
            yield unfinished.decode("utf-8", "replace")

    def _open(
        self, method: str, path: str, query: Mapping[str, str], timeout: Any, headers: dict[str, str], body: Any = None
    ) -> Any:
        """The answer, whose content is not read yet, if it is a success."""
        what = f"{method} {path}"
        request = self.prepare(method, path, tuple(query.items()), headers, body)
        try:
            answer = self.client.call_api(*request, _request_timeout=timeout)
        except HTTPError as error:
            raise Unavailable(f"no answer from the cluster: {what}: {error}; {REACH}") from error
        except ApiException as error:  # raised by the kubernetes package: TLS failed
            raise Unavailable(f"no answer from the cluster: {what}: {_describe_tls(error)}") from error
        if answer.status < 300:
            return answer
        refusal = error_of(answer.status, _parse(self._read(answer, what)), what)
        if answer.status == UNAUTHORIZED:
            raise Unavailable(
                f"the cluster rejects the credentials of the kubeconfig ({refusal}); {LOG_IN}"
            ) from refusal
        raise refusal

    def prepare(
        self, method: str, path: str, query: Sequence[tuple[str, str]], headers: dict[str, str], body: Any = None
    ) -> Any:
        """Arguments of `call_api` of the kubernetes package: method, URL, headers with the credentials, and body.

        Raises:
            UnusableKubeconfig: no header can hold the token.
        """
        request = self.client.param_serialize(
            method, path, query_params=list(query), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        sent = request[2]
        if token := sent.get("authorization"):
            sent["authorization"] = token.strip()  # a token file may end with a line break
            if not (sent["authorization"].isascii() and sent["authorization"].isprintable()):
                # Not by the error of the HTTP client, which prints the token.
                raise UnusableKubeconfig(
                    f"cannot use the kubeconfig: its token has a line break or another character that no token has; "
                    f"{LOG_IN}"
                )
        return request

    @staticmethod
    def _read(answer: Any, what: str) -> bytes:
        try:
            return bytes(answer.read())
        except HTTPError as error:
            raise Unavailable(f"the answer broke off: {what}: {error}") from error


def _parse(text: bytes) -> dict[str, Any]:
    """The JSON object in an answer; empty if it is something else."""
    try:
        content = load_json(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _describe_tls(error: ApiException) -> str:
    """One line about a connection that TLS refused."""
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.args[0] if cause.args and isinstance(cause.args[0], Exception) else None
    refusal = " ".join(str(cause or error.reason).split())
    if isinstance(cause, ssl.SSLCertVerificationError):
        compare = "compare server, tls-server-name and certificate-authority of the kubeconfig with the cluster's"
        return f"{refusal}; {compare}"
    return f"{refusal}; check certificate-authority, client-certificate and client-key in the kubeconfig"


def connect(
    kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
) -> tuple[Connection, str]:
    """A connection with the credentials of a kubeconfig, and the namespace to use.

    Args:
        kubeconfig: default: KUBECONFIG, else ~/.kube/config; without these, in a pod, its service account.
        context: default: the current one.
        namespace: default: the context's, else `default`; with a service account, the pod's.

    Raises:
        UnusableKubeconfig: the message says why.
    """
    # The package reads the variable only when it is imported, which in a notebook may be long before.
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG", "").strip(os.pathsep) or None
    files = (kubeconfig or DEFAULT_FILE).split(os.pathsep)
    if not any(Path(file).expanduser().exists() for file in files if file):
        if kubeconfig is None and context is None and (POD_FILES / "token").exists():
            return _connect_from_pod(namespace)
        raise UnusableKubeconfig(
            f"cannot use the kubeconfig: there is no file {kubeconfig or DEFAULT_FILE}; {GIVE_FILE}"
        )
    configuration = Configuration()
    configuration.retries = False
    try:
        contexts, current = list_kube_config_contexts(config_file=kubeconfig)
        names = [listed["name"] for listed in contexts]
        if context is not None and context not in names:
            raise UnusableKubeconfig(
                f"no context {context!r} in the kubeconfig, which has: {', '.join(names)}{did_you_mean(context, names)}"
            )
        chosen = next(listed for listed in contexts if listed["name"] == (context or current["name"]))
        with _root_log() as logged:
            client = new_client_from_config(
                kubeconfig, context, persist_config=False, client_configuration=configuration
            )
        user = chosen["context"].get("user")
    except (ConfigException, OSError, YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, OSError) and error.filename:
            reason = f"{error.filename} cannot be read: {error.strerror}"
        elif not isinstance(error, ConfigException | OSError | YAMLError):
            reason = f"it does not have the form of one ({reason})"
        raise UnusableKubeconfig(f"cannot use the kubeconfig: {reason}; {GIVE_OTHER}") from error
    if not configuration.host.startswith(("https://", "http://")):
        raise UnusableKubeconfig(
            f"cannot use the kubeconfig: its server {configuration.host!r} must begin with https:// or http://"
        )
    if user and not configuration.api_key and not configuration.cert_file:
        why = (
            "; ".join([*logged, "if an exec plug-in makes them, run its command to see why it fails"])
            if logged or configuration.host.startswith("https://")
            else "a server without https:// gets no certificate"
        )
        raise UnusableKubeconfig(
            f"cannot use the kubeconfig: user {user!r} has no credentials in it for {configuration.host!r}; {why}"
        )
    # An empty one is no default: in a script it is a variable that is not set.
    chosen_namespace = chosen["context"].get("namespace") or "default" if namespace is None else namespace
    return Connection(client), chosen_namespace


@contextmanager
def _root_log() -> Iterator[list[str]]:
    """What is logged meanwhile without a logger, as the package does with errors of exec plug-ins."""
    handler = _Collector(logging.ERROR)
    logging.root.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logging.root.removeHandler(handler)


class _Collector(logging.Handler):
    """Keeps messages, each as one line."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(" ".join(record.getMessage().split()))


def _connect_from_pod(namespace: str | None) -> tuple[Connection, str]:
    """A connection as the service account of this pod, as in a notebook that runs in the cluster."""
    configuration = Configuration()
    configuration.retries = False
    try:
        InClusterConfigLoader(str(POD_FILES / "token"), str(POD_FILES / "ca.crt")).load_and_set(configuration)
        namespace_of_pod = (POD_FILES / "namespace").read_text(encoding="utf-8").strip()
    except (ConfigException, OSError) as error:
        raise UnusableKubeconfig(f"cannot use the service account of this pod: {error}; {GIVE_OTHER}") from error
    return Connection(ApiClient(configuration)), namespace_of_pod if namespace is None else namespace
