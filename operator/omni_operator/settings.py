"""Settings of the operator from environment variables: `OMNI_OPERATOR_...`."""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic import ValidationError

from omni_operator.api.validation_messages import describe_errors, format_path
from omni_operator.cluster.leader.leader_election import LONGEST_SECONDS
from omni_operator.plan import ClusterSettings
from omni_operator.plan.pod_policy import PodPolicy
from omni_operator.status.decisions.timeouts import Timeouts

PREFIX = "OMNI_OPERATOR_"
MOST_SECONDS = 86_400_000  # 1000 days


class SettingsError(ValueError):
    """Invalid environment variables; the message names all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the operator's process.

    Attributes:
        namespaces: namespaces to watch; empty: all.
        namespace: the operator's own namespace.
        instance: name of this process, in events and in the Lease. A container that is restarted in its pod keeps it.
        lease: name of the leader's Lease, in the operator's own namespace; replicas have the same.
        lease_seconds: seconds after which another replica takes over from a leader that does not renew its Lease.
        address: IP address at which other replicas reach this one, for reports.
        http_port: port of `/healthz`, `/readyz` and `/metrics`.
        reports_port: port of the report endpoint.
        resync_seconds: interval between passes over a job without events, with 10% jitter.
        prune_seconds: interval between lists that find deletions missed by a watch.
        canary_seconds: interval between writes of the canary Lease.
        canary_deadline_seconds: seconds within which the watch must deliver such a write, or `/healthz` fails. Longer
            than the 70 seconds after which a silent watch is reopened.
        passes: maximum number of concurrent passes.
        jobs_shown: maximum number of jobs with their own metrics.
        stop_seconds: time for running passes at shutdown; less than the pod's grace period.
    """

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    namespaces: tuple[str, ...] = ()
    namespace: str = "default"
    instance: str = "omni-operator"
    lease: str = "omni-operator"
    lease_seconds: int = 10
    address: str | None = None
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
    def reports_url(self) -> str | None:
        """URL of this replica's report endpoint, for other replicas."""
        if self.address is None:
            return None
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.reports_port}"


def from_environ(environ: Mapping[str, str], namespace: str, process: int = 1) -> Settings:
    """Read the settings. `namespace` is the operator's own namespace unless a variable sets it.

    Args:
        process: number of this process; in a container it is 1.

    Raises:
        SettingsError: a variable is unknown or invalid.
    """
    variables = {name.removeprefix(PREFIX): value for name, value in environ.items() if name.startswith(PREFIX)}
    problems: list[str] = []
    read: dict[str, Any] = {}
    for name, value in sorted(variables.items()):
        reader = _READERS.get(name)
        if reader is None:
            problems.append(
                f"{PREFIX}{name} is unknown; known variables: {', '.join(PREFIX + known for known in _READERS)}"
            )
            continue
        try:
            read[name] = reader(value.strip())
        except ValueError as error:
            problems.append(f"{PREFIX}{name}={value!r}: {error}")
    if problems:
        raise SettingsError("\n".join(problems))
    own_namespace = str(read.get("NAMESPACE", namespace))
    return Settings(
        cluster=ClusterSettings(
            image=read.get("IMAGE") or None,
            report_url=read.get("REPORT_URL") or None,
            resource_names=read.get("RESOURCE_NAMES", {}),
            operator_namespace=own_namespace,
            kuberay_namespace=read.get("KUBERAY_NAMESPACE") or None,
            pod_policy=read.get("POD_POLICY", PodPolicy()),
            **({"ray_version": read["RAY_VERSION"]} if "RAY_VERSION" in read else {}),
        ),
        timeouts=Timeouts(**{name: read[key] for key, name in _TIMEOUTS.items() if key in read}),
        namespace=own_namespace,
        # Processes on one machine differ by number; in a pod it is the same after a restart.
        instance=f"{environ.get('HOSTNAME', 'omni-operator')}_{process}",
        **{name: read[name.upper()] for name in _PLAIN if name.upper() in read},
    )


def _parse_int(text: str, least: int, most: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ValueError(f"expected a whole number from {least} to {most}")
    return int(text)


def _parse_seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 0 < float(text) <= MOST_SECONDS:
        raise ValueError(f"expected a number of seconds greater than 0, at most {MOST_SECONDS}")
    return float(text)


def _parse_lease_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise ValueError("expected a name: at most 63 of a-z, 0-9 and -")
    return text


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parse_resource_names(text: str) -> Any:
    pairs = [item.partition("=") for item in _parse_list(text)]
    if any(not (name and equals and value) for name, equals, value in pairs):
        raise ValueError("expected VENDOR=resource,VENDOR=resource")
    return _parse_cluster_setting("resource_names", {name: value for name, _, value in pairs})


def _parse_cluster_setting(name: str, value: object) -> Any:
    try:
        return getattr(ClusterSettings.model_validate({name: value}), name)
    except ValidationError as error:
        errors = describe_errors(error, ClusterSettings)
        raise ValueError("; ".join(f"{format_path(at)}: {text}" if at else text for at, text in errors)) from error


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _parse_log_format(text: str) -> str:
    if text not in ("plain", "full", "json"):
        raise ValueError("expected plain, full or json")
    return text


_TIMEOUTS = {
    "HEAD_TIMEOUT_SECONDS": "head",
    "IMAGE_TIMEOUT_SECONDS": "image",
    "STALL_SECONDS": "stall",
    "RETRY_SECONDS": "retry",
    "QUEUE_SECONDS": "queue",
}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "NAMESPACES": _parse_list,
    "NAMESPACE": str,
    "IMAGE": str,
    "RAY_VERSION": str,
    "REPORT_URL": str,
    "RESOURCE_NAMES": _parse_resource_names,
    "KUBERAY_NAMESPACE": str,
    "POD_POLICY": lambda text: _parse_cluster_setting("pod_policy", json.loads(text)),
    **dict.fromkeys(("HTTP_PORT", "REPORTS_PORT"), partial(_parse_int, least=0, most=65535)),
    "RESYNC_SECONDS": _parse_seconds,
    "PRUNE_SECONDS": _parse_seconds,
    "CANARY_SECONDS": _parse_seconds,
    "CANARY_DEADLINE_SECONDS": _parse_seconds,
    "LEASE": _parse_lease_name,
    "LEASE_SECONDS": partial(_parse_int, least=3, most=LONGEST_SECONDS),
    "ADDRESS": lambda text: str(ipaddress.ip_address(text)),
    "PASSES": partial(_parse_int, least=1, most=1000),
    "JOBS_SHOWN": partial(_parse_int, least=0, most=1_000_000),
    "STOP_SECONDS": _parse_seconds,
    "LOG_FORMAT": _parse_log_format,
    "VERBOSE": _parse_bool,
    **dict.fromkeys(_TIMEOUTS, lambda text: timedelta(seconds=_parse_seconds(text))),
}
_PLAIN = [spec.name for spec in fields(Settings) if spec.name.upper() in _READERS and spec.name != "namespace"]
