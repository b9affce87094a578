"""PURE: functions that run in the process of verl's router, so that one call serves the requests of a whole batch."""

from collections.abc import Mapping, Sequence
from typing import Any


def acquire_servers(router: Any, requests: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Have the router choose a server for each request.

    Args:
        requests: arguments of the router's `acquire_server`.

    Returns:
        The id of each request's server, and the servers' handles by their ids.
    """
    chosen = [router.acquire_server(**request) for request in requests]
    return [server_id for server_id, _ in chosen], dict(chosen)


def release_servers(router: Any, requests: Sequence[Mapping[str, Any]]) -> None:
    """Tell the router that requests have ended; arguments of its `release_server`."""
    for request in requests:
        router.release_server(**request)
