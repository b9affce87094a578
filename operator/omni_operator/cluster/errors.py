"""Errors of the API server by meaning.

ClusterError
├── Unavailable       no answer, rejected credentials, or too many requests; a retry may succeed
│   └── ServerError   500, or no answer in time; if it stays so, what was sent may be the cause
├── Conflict          the object changed or was created again; read it, then retry
│   ├── AlreadyExists
│   └── NotGoneYet    an object of an earlier job of the same name still exists
├── NotFound          the object or its namespace does not exist
├── KindAbsent        the kind is not served (a CRD is not installed)
├── NotLeader         this replica does not lead; the request was not sent
├── Expired           the version from which to watch is too old; list again
└── Refused           the request is invalid or not allowed; the same request fails again
    ├── Forbidden     a right is missing
    ├── PolicyDenied  an admission webhook or a policy of the cluster denies the request
    ├── NameTaken     another owner's object has the name
    ├── QuotaExceeded
    ├── NamespaceTerminating
    ├── DefinitionOutdated  the definition of the kind does not have a field that was sent
    └── ServerFailed  ServerError several times in a row
"""

import re
from collections.abc import Mapping
from typing import Any

from omni_operator.status.observed.evidence import is_refused_by_quota

TEXT_LIMIT = 1024
RETRY_AFTER_MOST = 300.0  # seconds; a proxy may ask for years
_DIGITS = re.compile("[0-9]+")
_POLICY_CODES = range(400, 429)  # 429 and 5xx ask for the same request again
# What the API server says of a webhook, and of a ValidatingAdmissionPolicy, whatever code these chose for the answer.
_DENIED = re.compile(r"\bdenied (the )?request\b")


class ClusterError(Exception):
    """A request to the API server failed."""


class Unavailable(ClusterError):
    """The API server did not answer, rejected the credentials, or asked to retry later.

    Attributes:
        after: seconds to wait, from the Retry-After header; at most `RETRY_AFTER_MOST`.
    """

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


class ServerError(Unavailable):
    """The API server answered 500, or not in time: it failed, or a webhook that it calls for the object.

    Attributes:
        request: verb and path of the request.
    """

    def __init__(self, text: str, after: float | None = None, request: str = "") -> None:
        super().__init__(text, after)
        self.request = request


class Conflict(ClusterError):
    """The object changed since it was read, or was deleted and created again."""


class AlreadyExists(Conflict):
    """An object of that name exists."""


class NotGoneYet(Conflict):
    """An object of an earlier job of the same name still exists."""


class NotFound(ClusterError):
    """The object or its namespace does not exist."""


class KindAbsent(ClusterError):
    """The API server does not serve this kind."""


class Expired(ClusterError):
    """The API server no longer has the changes after a version, or the rest of a list."""


class NotLeader(ClusterError):
    """The replica does not lead, so it did not send the write."""


class Refused(ClusterError):
    """The API server rejected the request as invalid or not allowed."""


class Forbidden(Refused):
    """The user or service account that asks lacks the permission."""


class PolicyDenied(Refused):
    """An admission webhook or a policy of the cluster denies the request."""


class NameTaken(Refused):
    """An object that does not belong to the job has the name of one of the job's objects."""


class QuotaExceeded(Refused):
    """A ResourceQuota of the namespace refuses the object."""


class NamespaceTerminating(Refused):
    """The namespace is being deleted and accepts no new objects."""


class DefinitionOutdated(Refused):
    """The cluster's definition of the kind (CRD) does not have a field that was applied."""


class ServerFailed(Refused):
    """The API server answered several times in a row with 500, or not in time."""


def error_of(code: int, reply: Mapping[str, Any] | None, what: str, retry_after: str | None = None) -> ClusterError:
    """The error for an answer.

    Args:
        reply: the answer's `Status` object; None if the body is something else.
        what: the request, for the message.
    """
    message = str((reply or {}).get("message") or f"HTTP {code}")[:TEXT_LIMIT]
    text = f"{what}: {message}"
    if code in _POLICY_CODES and _DENIED.search(message):
        return PolicyDenied(text)
    if code == 404:
        # For a kind that is not served the answer has no details about an object.
        details = (reply or {}).get("details") or {}
        return NotFound(text) if details.get("name") else KindAbsent(text)
    if code == 410:
        return Expired(text)
    if code == 409:
        return AlreadyExists(text) if (reply or {}).get("reason") == "AlreadyExists" else Conflict(text)
    if code == 403:
        causes = ((reply or {}).get("details") or {}).get("causes") or ()
        if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
            return NamespaceTerminating(text)
        return QuotaExceeded(text) if is_refused_by_quota(message) else Forbidden(text)
    if code in (401, 429) or code >= 500:  # 401 is about the operator's credentials, not about the object
        seconds = min(float(retry_after), RETRY_AFTER_MOST) if retry_after and _DIGITS.fullmatch(retry_after) else None
        return ServerError(text, seconds, what) if code == 500 else Unavailable(text, seconds)
    return Refused(text)
