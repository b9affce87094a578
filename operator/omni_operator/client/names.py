"""PURE: names of jobs and namespaces, checked before they become part of a request."""

from __future__ import annotations

import re

from omni_operator.cluster.errors import ClusterError

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# DNS-1123 subdomain and label, as the API server checks them.
_OBJECT, OBJECT_LIMIT = re.compile(rf"{_LABEL}(\.{_LABEL})*"), 253
_NAMESPACE, NAMESPACE_LIMIT = re.compile(_LABEL), 63


class InvalidName(ClusterError):
    """No object can have this name; nothing was requested."""


def check_job_name(name: str) -> str:
    """The name, if a job can have it.

    Raises:
        InvalidName: it cannot.
    """
    if not _OBJECT.fullmatch(name) or len(name) > OBJECT_LIMIT:
        raise InvalidName(_describe(name, "job", "digits, '-' and '.'", OBJECT_LIMIT))
    return name


def check_namespace(name: str) -> str:
    """The name, if a namespace can have it.

    Raises:
        InvalidName: it cannot.
    """
    if not _NAMESPACE.fullmatch(name) or len(name) > NAMESPACE_LIMIT:
        raise InvalidName(_describe(name, "namespace", "digits and '-'", NAMESPACE_LIMIT))
    return name


def _describe(name: str, kind: str, characters: str, limit: int) -> str:
    return (
        f"{name!r} is not a valid name of a {kind}: it must be 1 to {limit} lower-case letters, {characters}, with a "
        "letter or a digit at both ends"
    )
