"""The operator's requests in the audit log of a control plane."""

from collections import Counter

from e2e.cluster.audit import Mark, count
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import AGENT


def assert_requests(plane: ControlPlane, namespace: str, since: Mark, expected: Counter[tuple[str, str]]) -> None:
    """The operator's requests for a namespace, once the expected ones are logged, are these and periodic ones.

    These are the discovery and watches of missing kinds, and its Leases. The namespace of an earlier test may still be
    there, in which the operator corrects what that test changed. A request that the API server failed to carry
    out (5xx, or no answer in time) is not one more: the operator repeats it.
    """
    plane.audit.settled(expected, user_agent=AGENT, namespace=namespace, since=since)
    calls = [
        call
        for call in plane.audit.calls(since)
        if call.user_agent.startswith(AGENT)
        and call.namespace in ("", namespace)
        and call.verb not in ("get", "watch")
        and call.resource != "leases"
    ]
    requests = Counter((call.verb, call.resource) for call in calls if 0 < call.code < 500)
    assert requests == expected, [
        f"{call.code} {call.verb} {call.resource} {call.namespace}/{call.name}" for call in calls
    ]


def made(plane: ControlPlane, namespace: str, since: Mark) -> Counter[tuple[str, str]]:
    """The operator's requests for a namespace that succeeded."""
    calls = (call for call in plane.audit.calls(since) if call.code < 300)
    return count(calls, user_agent=AGENT, namespace=namespace)
