"""A client of the API server for cluster providers and tests: paths and dictionaries over the kubernetes package."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kubernetes.client import ApiClient, ApiException, Configuration
from urllib3.exceptions import HTTPError

from .errors import ClusterError

TIMEOUT_S = 30.0
READY_TIMEOUT_S = 5.0
NOT_FOUND = 404
CONFLICT = 409
PATCHES = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}


class ApiError(ClusterError):
    """The API server rejected the request; `code` and `reason` come from its Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class ApiUnavailable(ClusterError):
    """The API server did not answer; a retry may succeed."""


class Api:
    """A client with one identity and one user agent; close it, or use it in a `with`."""

    def __init__(self, server: str, authority: Path, certificate: Path, key: Path, user_agent: str) -> None:
        configuration = Configuration(
            host=server, ssl_ca_cert=str(authority), cert_file=str(certificate), key_file=str(key), no_proxy="*"
        )
        configuration.retries = False
        self._client = ApiClient(configuration)
        self._client.user_agent = user_agent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def ready(self) -> bool:
        """Whether the API server answers that it is ready."""
        try:
            return self._send("GET", "/readyz", timeout=READY_TIMEOUT_S)[0] == 200
        except ApiUnavailable:
            return False

    def get(self, path: str, **query: str) -> dict[str, Any]:
        return self._call("GET", path, query=query)

    def gone(self, path: str) -> bool:
        """Whether there is nothing at `path`; False for any other error."""
        try:
            self.get(path)
        except ApiError as error:
            return error.code == NOT_FOUND
        return False

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body=body)

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("PUT", path, body=body)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> dict[str, Any]:
        """Patch by `apply` (server-side, needs `fieldManager`), `merge` or `json`."""
        return self._call("PATCH", path, body=body, query=query, content_type=PATCHES[kind])

    def delete(self, path: str, **query: str) -> dict[str, Any]:
        return self._call("DELETE", path, query=query)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            ApiError: the answer is not a success.
            ApiUnavailable: there is no answer.
            ValueError: the answer is not JSON.
        """
        code, text = self._send(method, path, body, query, content_type)
        content: dict[str, Any] = json.loads(text)
        if code >= 400:
            raise ApiError(code, content.get("reason", ""), content.get("message", text[:500].decode(errors="replace")))
        return content

    def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = TIMEOUT_S,
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        request = self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=timeout)
            return answer.status, answer.read()
        except (HTTPError, ApiException) as error:  # the package reports errors of TLS as an ApiException
            raise ApiUnavailable(f"{method} {path}: {error}") from error
