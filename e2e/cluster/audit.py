"""The audit log of the API server: which calls were made, counted."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import deadlines


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `resource` is the resource with its subresource after a slash, or the path of any other request."""

    user_agent: str
    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the log: bytes from its beginning."""

    offset: int


def parse(lines: Iterable[str]) -> dict[str, Call]:
    """The calls by their audit id, each once; a watch that has begun and ended is one call.

    Requests that the API server makes to itself are left out.
    """
    calls: dict[str, Call] = {}
    for line in lines:
        event = json.loads(line)
        if event["user"].get("username") == "system:apiserver":
            continue
        target = event.get("objectRef") or {}
        resource = target.get("resource") or event.get("requestURI", "").partition("?")[0]
        if target.get("subresource"):
            resource += f"/{target['subresource']}"
        calls[event["auditID"]] = Call(
            user_agent=event.get("userAgent", ""),
            user=event["user"].get("username", ""),
            verb=event["verb"],
            resource=resource,
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=(event.get("responseStatus") or {}).get("code", 0),
        )
    return calls


def count(
    calls: Iterable[Call], *, user_agent: str = "", user: str = "", namespace: str = ""
) -> Counter[tuple[str, str]]:
    """Number of calls by verb and resource, of user agents and users with these prefixes, in one namespace or all."""
    return Counter(
        (call.verb, call.resource)
        for call in calls
        if call.user_agent.startswith(user_agent) and call.user.startswith(user) and namespace in ("", call.namespace)
    )


class AuditLog:
    """The log of a running API server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> Mark:
        """The end of the log now."""
        return Mark(self.path.stat().st_size if self.path.exists() else 0)

    def calls(self, since: Mark | None = None) -> list[Call]:
        """Every call written since then, in the order in which they began to be written."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(since.offset if since else 0)
            text = file.read().decode()
        # The last line may be half written; after it comes nothing.
        return list(parse(text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]).values())

    def counts(
        self, *, user_agent: str = "", user: str = "", namespace: str = "", since: Mark | None = None
    ) -> Counter[tuple[str, str]]:
        """Calls by (verb, resource) of one client, for example `{("list", "pods"): 1}`."""
        return count(self.calls(since), user_agent=user_agent, user=user, namespace=namespace)

    def settled(
        self,
        expected: Counter[tuple[str, str]],
        *,
        user_agent: str = "",
        user: str = "",
        namespace: str = "",
        since: Mark | None = None,
    ) -> Counter[tuple[str, str]]:
        """The counts, as soon as every expected call is in the log; a line follows its answer by a moment.

        There may be more calls than expected: compare the returned counts.

        Raises:
            DeadlinePassed: one of them is not there in time.
        """

        def probe() -> Counter[tuple[str, str]] | None:
            counts = self.counts(user_agent=user_agent, user=user, namespace=namespace, since=since)
            return counts if expected <= counts else None

        return deadlines.wait_until(f"{dict(expected)} in the audit log", deadlines.AUDIT_SETTLED, probe)
