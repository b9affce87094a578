"""A small client of the API server, for providers and tests."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from .errors import ClusterError

PATCHES = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}


class ApiError(ClusterError):
    """The API server refused. `code` is the status of the answer, `reason` Kubernetes' own word."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason = code, reason


class ApiUnavailable(ClusterError):
    """The API server did not answer; trying again may help."""


class Api:
    """One client with one identity and one user agent; close it, or use it in a `with`."""

    def __init__(self, server: str, authority: Path, certificate: Path, key: Path, user_agent: str) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(certificate, key)
        self._http = httpx.Client(
            base_url=server, verify=context, headers={"User-Agent": user_agent}, timeout=30, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Whether the API server answers and says that it is ready."""
        try:
            return self._http.get("/readyz", timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def get(self, path: str, **query: str) -> dict[str, Any]:
        return self._call("GET", path, query=query)

    def gone(self, path: str) -> bool:
        """Whether there is nothing at `path`; any other refusal says nothing about that."""
        try:
            self.get(path)
        except ApiError as error:
            return error.code == httpx.codes.NOT_FOUND
        return False

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body=body)

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("PUT", path, body=body)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> dict[str, Any]:
        """Patch by `apply` (server-side, wants `fieldManager`), `merge` or `json`."""
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
        """One request.

        Raises:
            ApiError: the answer is not a success.
            ApiUnavailable: there is no answer.
        """
        headers = {"Content-Type": content_type} if body is not None else {}
        try:
            answer = self._http.request(method, path, json=body, params=query or None, headers=headers)
        except httpx.TransportError as error:
            raise ApiUnavailable(f"{method} {path}: {error}") from error
        content: dict[str, Any] = answer.json()
        if answer.is_error:
            raise ApiError(answer.status_code, content.get("reason", ""), content.get("message", answer.text[:500]))
        return content
