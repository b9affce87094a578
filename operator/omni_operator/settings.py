"""Settings of the operator, from its environment: `OMNI_OPERATOR_...`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from omni_operator.plan import ClusterSettings
from omni_operator.plan.cluster_settings import RESOURCE_NAMES
from omni_operator.status.timeouts import Timeouts

PREFIX = "OMNI_OPERATOR_"


class SettingsError(ValueError):
    """Variables of the environment that cannot be used; the message names all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the operator runs.

    Attributes:
        namespaces: that are watched; none: all.
        namespace: the operator's own.
        instance: name of this process, in events and in the Lease.
        http_port: of `/healthz`, `/readyz` and `/metrics`.
        reports_port: where running jobs report.
        resync_seconds: between two looks at a job of which nothing was heard; each one varies by a tenth.
        prune_seconds: between two lists that find what a broken watch missed.
        canary_seconds: between two writes of the Lease.
        canary_deadline_seconds: how long the watch may take to tell of one before the process counts as dead. More
            than the 70 seconds after which a silent watch is opened again.
        passes: that run at the same time.
        jobs_shown: with metrics of their own.
        stop_seconds: that running passes have to end, less than the pod's grace period.
    """

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    namespaces: tuple[str, ...] = ()
    namespace: str = "default"
    instance: str = "omni-operator"
    http_port: int = 8080
    reports_port: int = 8090
    resync_seconds: float = 600.0
    prune_seconds: float = 1800.0
    canary_seconds: float = 15.0
    canary_deadline_seconds: float = 120.0
    passes: int = 16
    jobs_shown: int = 500
    stop_seconds: float = 10.0
    log_format: str = "full"
    verbose: bool = False

    @property
    def lease_namespace(self) -> str:
        """Where the Lease lies: it must be where the watches look."""
        return self.namespace if not self.namespaces or self.namespace in self.namespaces else self.namespaces[0]


def from_environ(environ: Mapping[str, str], namespace: str) -> Settings:
    """The settings; `namespace` is the operator's own unless a variable says otherwise.

    Raises:
        SettingsError: a variable is unknown or cannot be used.
    """
    given = {name.removeprefix(PREFIX): value for name, value in environ.items() if name.startswith(PREFIX)}
    problems: list[str] = []
    read: dict[str, Any] = {}
    for name, value in sorted(given.items()):
        reader = _READERS.get(name)
        if reader is None:
            problems.append(f"{PREFIX}{name} is unknown; there are {', '.join(PREFIX + known for known in _READERS)}")
            continue
        try:
            read[name] = reader(value.strip())
        except ValueError as error:
            problems.append(f"{PREFIX}{name}={value!r}: {error}")
    if problems:
        raise SettingsError("\n".join(problems))
    own = str(read.get("NAMESPACE", namespace))
    return Settings(
        cluster=ClusterSettings(
            image=read.get("IMAGE") or None,
            report_url=read.get("REPORT_URL") or None,
            resource_names={**RESOURCE_NAMES, **read.get("RESOURCE_NAMES", {})},
            operator_namespace=own,
            kuberay_namespace=read.get("KUBERAY_NAMESPACE") or None,
            **({"ray_version": read["RAY_VERSION"]} if "RAY_VERSION" in read else {}),
        ),
        timeouts=Timeouts(**{name: read[key] for key, name in _TIMEOUTS.items() if key in read}),
        namespace=own,
        instance=environ.get("HOSTNAME", "omni-operator"),
        **{name: read[name.upper()] for name in _PLAIN if name.upper() in read},
    )


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("write a whole number")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not float(text):
        raise ValueError("write a number of seconds, more than 0")
    return float(text)


def _span(text: str) -> timedelta:
    return timedelta(seconds=_seconds(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pairs(text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in _names(text)]
    if any(not (name and equals and value) for name, equals, value in pairs):
        raise ValueError("write VENDOR=resource,VENDOR=resource")
    return {name: value for name, _, value in pairs}


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _format(text: str) -> str:
    if text not in ("plain", "full", "json"):
        raise ValueError("write plain, full or json")
    return text


_TIMEOUTS = {
    "HEAD_PATIENCE_SECONDS": "head", "IMAGE_PATIENCE_SECONDS": "image", "STALL_SECONDS": "stall",
    "DELETION_SECONDS": "deletion", "RETRY_SECONDS": "retry",
}  # fmt: skip
_READERS: Mapping[str, Callable[[str], Any]] = {
    "NAMESPACES": _names, "NAMESPACE": str, "IMAGE": str, "RAY_VERSION": str, "REPORT_URL": str,
    "RESOURCE_NAMES": _pairs, "KUBERAY_NAMESPACE": str, "HTTP_PORT": _whole, "REPORTS_PORT": _whole,
    "RESYNC_SECONDS": _seconds, "PRUNE_SECONDS": _seconds, "CANARY_SECONDS": _seconds,
    "CANARY_DEADLINE_SECONDS": _seconds, "PASSES": _whole, "JOBS_SHOWN": _whole, "STOP_SECONDS": _seconds,
    "LOG_FORMAT": _format, "VERBOSE": _truth, **dict.fromkeys(_TIMEOUTS, _span),
}  # fmt: skip
_PLAIN = [spec.name for spec in fields(Settings) if spec.name.upper() in _READERS and spec.name != "namespace"]
