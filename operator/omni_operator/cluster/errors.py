"""What an API server's refusals mean.

ClusterError
├── Unavailable       it did not answer, or said to come back later; trying again may help
├── Conflict          the object changed, or is another one of the same name; look again, then try again
├── NotFound          the object, or its namespace, is gone
├── KindAbsent        it does not serve this kind (a CRD is not installed)
└── Refused           it understood and said no, in words; trying the same again does not help
    ├── Forbidden
    ├── QuotaExceeded
    └── NamespaceTerminating
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_LIMIT = 1024


class ClusterError(Exception):
    """The API server did not do what it was asked."""


class Unavailable(ClusterError):
    """It did not answer, or said to come back later.

    Attributes:
        after: seconds to wait, where it said so.
    """

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


class Conflict(ClusterError):
    """The object changed since it was read, or is another one of the same name."""


class NotFound(ClusterError):
    """The object, or its namespace, is gone."""


class KindAbsent(ClusterError):
    """The API server does not serve this kind."""


class Refused(ClusterError):
    """It understood and said no."""


class Forbidden(Refused):
    """The operator's rights do not reach so far."""


class QuotaExceeded(Refused):
    """The namespace's quota is used up."""


class NamespaceTerminating(Refused):
    """Nothing can be made in a namespace that is being deleted."""


def error_of(code: int, reply: Mapping[str, Any] | None, what: str, retry_after: str | None = None) -> ClusterError:
    """The error that an answer means.

    Args:
        reply: the answer's `Status` object; None where the body was something else.
        what: what was asked, for the message.
    """
    said = str((reply or {}).get("message") or f"HTTP {code}")[:TEXT_LIMIT]
    text = f"{what}: {said}"
    if code == 404:
        # The API server answers for kinds that it does not know with a page, not with a Status about an object.
        details = (reply or {}).get("details") or {}
        return NotFound(text) if details.get("name") else KindAbsent(text)
    if code == 409:
        return Conflict(text)
    if code == 403:
        causes = ((reply or {}).get("details") or {}).get("causes") or ()
        if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
            return NamespaceTerminating(text)
        return QuotaExceeded(text) if "exceeded quota" in said else Forbidden(text)
    if code in (401, 429) or code >= 500:  # 401: about the operator's credentials, not about what it asked
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return Unavailable(text, seconds)
    return Refused(text)
