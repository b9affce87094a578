"""Has the training save a checkpoint before this pod ends: `python3 -m verl_omni.utils.save_before_stop SECONDS`.

It is the preStop hook of the head and of trainer pods of a job in a queue, whose pods are deleted without a notice when
the queue preempts the job. It ends when every step that was complete has a checkpoint, when no training runs, or after
`SECONDS`; then the kubelet stops the container. A run that has saved for a hook takes no step more.

The training program and the hooks share two entries of Ray's key-value store: the run's `Progress`, and the request.
"""

import ipaddress
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psutil

PROGRESS = b"progress"
REQUEST = b"checkpoint_requested"
NAMESPACE = b"diffusionrl_save_before_stop"
POLL_SECONDS = 1.0
GCS_PORT = 6379
STORE_SECONDS = 5.0  # for an answer of Ray's head


class Progress(msgspec.Struct, frozen=True):
    """Progress of a run.

    Attributes:
        complete: its last complete step. saved: the newest step with a checkpoint. job: Ray's id of the program.
    """

    complete: int
    saved: int
    job: str


class Store:
    """Ray's key-value store and table of jobs.

    Args:
        head: Ray's `GcsClient`.
    """

    def __init__(self, head: Any) -> None:
        self._head = head

    def progress(self) -> Progress | None:
        """The progress of the run; None before it has begun."""
        stored = self._head.internal_kv_get(PROGRESS, namespace=NAMESPACE, timeout=STORE_SECONDS)
        return None if stored is None else msgspec.json.decode(stored, type=Progress)

    def request(self) -> None:
        """Request a checkpoint."""
        self._head.internal_kv_put(REQUEST, b"1", True, namespace=NAMESPACE, timeout=STORE_SECONDS)

    def runs(self, job: str) -> bool:
        """Whether a program that has connected to Ray still runs."""
        fields = {"skip_submission_job_info_field": True, "skip_is_running_tasks_field": True}
        jobs = self._head.get_all_job_info(timeout=STORE_SECONDS, **fields).items()
        return any(key.hex() == job and not info.is_dead for key, info in jobs)


def save(
    store: Any,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Have the steps that are complete now saved. Returns whether they are."""
    before = store.progress()
    if before is None or before.saved >= before.complete:
        return True
    store.request()
    latest = clock() + seconds
    while clock() < latest and store.runs(before.job):
        if store.progress().saved >= before.complete:
            return True
        pause(POLL_SECONDS)
    return bool(store.progress().saved >= before.complete)


def head_address() -> str:
    """Address of the head that this pod's Ray is connected to.

    The name in `RAY_ADDRESS` cannot be resolved any more: the head's Service is deleted with the pods.

    Raises:
        RuntimeError: no Ray runs here, or it is not connected.
    """
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            for connection in process.net_connections(kind="tcp"):
                if connection.raddr and connection.raddr.port == GCS_PORT:
                    return _with_port(connection.raddr.ip)
    raise RuntimeError("no Ray of this pod is connected to a head")


def _with_port(address: str) -> str:
    """Ray listens for both versions of IP, so an IPv4 address is given as an IPv6 one."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv4Address):
        return f"{parsed}:{GCS_PORT}"
    return f"{parsed.ipv4_mapped}:{GCS_PORT}" if parsed.ipv4_mapped else f"[{parsed}]:{GCS_PORT}"


def main() -> int:
    """Wait for the checkpoint. Returns the exit code."""
    import ray

    return 0 if save(Store(ray._raylet.GcsClient(address=head_address())), float(sys.argv[1])) else 1


if __name__ == "__main__":
    sys.exit(main())
