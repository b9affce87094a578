"""PURE: names of jobs and namespaces, checked before they become part of a request."""

from __future__ import annotations

import re

from omni_operator.cluster.errors import ClusterError

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# DNS-1123 subdomain and label, as the API server checks them.
_OBJECT = re.compile(rf"{_LABEL}(\.{_LABEL})*")
OBJECT_LIMIT = 253
_NAMESPACE = re.compile(_LABEL)
NAMESPACE_LIMIT = 63


class InvalidName(ClusterError):
    """No object can have this name; nothing was requested."""


def check_job_name(name: str) -> str:
    """The name, if a job can have it.

    Raises:
        InvalidName: it cannot.
    """
    return _check(name, "job", _OBJECT, OBJECT_LIMIT, "digits, '-' and '.'")


def check_namespace(name: str) -> str:
    """The name, if a namespace can have it.

    Raises:
        InvalidName: it cannot.
    """
    return _check(name, "namespace", _NAMESPACE, NAMESPACE_LIMIT, "digits and '-'")


def _check(name: str, kind: str, pattern: re.Pattern[str], limit: int, characters: str) -> str:
    if not pattern.fullmatch(name) or len(name) > limit:
        raise InvalidName(
            f"{name!r} is not a valid name of a {kind}: it must be 1 to {limit} lower-case letters, {characters}, with "
            "a letter or a digit at both ends"
        )
    return name
