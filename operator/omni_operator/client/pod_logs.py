"""Output of a job's pods."""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from omni_operator.api.names import JOB_LABEL, TRAINER_GROUP
from omni_operator.api.suggestions import did_you_mean
from omni_operator.cluster.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from omni_operator.cluster.kinds import PODS
from omni_operator.plan.pods.containers import CONTAINER

from .job_pods import JobPod, parse_pods, select_pod_bodies
from .jobs import Client, Job

SILENCE_SECONDS = 300.0
POLL_SECONDS = 2.0
LAST_LINES_SECONDS = 6.0  # longer than a reader waits before it connects again


class PodNotFound(ClusterError):
    """The job has no such pod."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a pod's output, or a note about the pod."""

    pod: str
    text: str
    is_note: bool = False


# What readers found: lines, or that the user may not read them.
_Lines: TypeAlias = "queue.SimpleQueue[LogLine | Forbidden]"


def find_pods(client: Client, job: Job) -> tuple[JobPod, ...]:
    """The pods of a job's newest attempt; none before its status has the uid of the attempt's RayCluster."""
    path = PODS.path(client.namespace)
    selector = f"{JOB_LABEL}={job.name}"
    listing = client.connection.list(path, labelSelector=selector)
    return parse_pods(select_pod_bodies(listing, job.status.children.ray_cluster_uid))


def select_pods(pods: tuple[JobPod, ...], wanted: str | None) -> tuple[JobPod, ...]:
    """The trainer pods, or the pod with this name, or the pods with this role: `head`, `rollout` or `reward`.

    Raises:
        PodNotFound: the job has pods, and none has this name or role.
    """
    if wanted is None:
        return tuple(pod for pod in pods if pod.role == TRAINER_GROUP)
    selected = tuple(pod for pod in pods if wanted in (pod.name, pod.role))
    if pods and not selected:
        names = [pod.name for pod in pods]
        raise PodNotFound(f"no pod {wanted!r}; the job has: {', '.join(names)}{did_you_mean(wanted, names)}")
    return selected


def read_logs(client: Client, pods: tuple[JobPod, ...], tail: int | None = None) -> Iterator[LogLine]:
    """The output of pods so far, one pod after the other.

    Args:
        tail: only as many last lines of each pod.

    Raises:
        Forbidden: the user may not read the output of pods.
    """
    for pod in pods:
        query = {"container": CONTAINER} | ({"tailLines": str(tail)} if tail is not None else {})
        try:
            for text in client.connection.lines(_log_path(client, pod), SILENCE_SECONDS, **query):
                yield LogLine(pod.name, text)
        except Forbidden:
            raise
        except (Refused, NotFound) as error:
            yield LogLine(pod.name, str(error), is_note=True)


def follow_logs(client: Client, name: str, wanted: str | None = None, tail: int | None = None) -> Iterator[LogLine]:
    """The output of a job's pods as it appears, of pods of later attempts too, until the job has ended.

    Raises:
        PodNotFound: there are pods, and none is of the wanted name.
        Forbidden: the user may not read the output of pods.
    """
    lines: _Lines = queue.SimpleQueue()
    stop = threading.Event()
    readers = dict[str, threading.Thread]()
    try:
        for job in client.follow(name, poll=POLL_SECONDS / 4):
            try:
                pods = find_pods(client, job)
            except Unavailable:
                pods = ()  # looked for again with the next look at the job, which has a time limit
            for pod in select_pods(pods, wanted):
                if pod.name not in readers and pod.phase != "Pending":
                    reader = _Reader(client, pod, tail, lines.put, stop)
                    readers[pod.name] = threading.Thread(target=reader.run, daemon=True, name=f"log of {pod.name}")
                    readers[pod.name].start()
            yield from _last_lines(lines, readers.values()) if job.status.finished else _new_lines(lines)
    finally:
        stop.set()


def _new_lines(lines: _Lines) -> Iterator[LogLine]:
    """What arrives within the interval between two looks at the job."""
    end = time.monotonic() + POLL_SECONDS
    while (left := end - time.monotonic()) > 0:
        try:
            yield _line_of(lines.get(timeout=left))
        except queue.Empty:
            return


def _last_lines(lines: _Lines, readers: Collection[threading.Thread]) -> Iterator[LogLine]:
    """The rest of the output of a job that has ended: until all readers have, or nothing arrives for a while.

    A reader whose connection broke at that moment connects once more.
    """
    end = time.monotonic() + LAST_LINES_SECONDS
    while time.monotonic() < end:
        running = any(reader.is_alive() for reader in readers)  # before the look at the queue: nothing comes after
        try:
            yield _line_of(lines.get(timeout=POLL_SECONDS / 4 if running else 0))
            end = time.monotonic() + LAST_LINES_SECONDS
        except queue.Empty:
            if not running:
                return


def _line_of(found: LogLine | Forbidden) -> LogLine:
    if isinstance(found, Forbidden):
        raise found
    return found


class _Reader:
    """Reads one pod's output in a thread, and continues where it was if the connection breaks."""

    def __init__(
        self,
        client: Client,
        pod: JobPod,
        tail: int | None,
        put: Callable[[LogLine | Forbidden], None],
        stop: threading.Event,
    ) -> None:
        self._client = client
        self._pod = pod
        self._tail = tail
        self._put = put
        self._stop = stop
        self._last = ""  # time of the last line

    def run(self) -> None:
        while not self._stop.is_set() and not self._read():
            self._stop.wait(POLL_SECONDS)

    def _read(self) -> bool:
        """Whether the output has ended."""
        query = {"container": CONTAINER, "follow": "true", "timestamps": "true"}
        resumed = self._last
        if resumed:
            query["sinceTime"] = resumed
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        try:
            for line in self._client.connection.lines(_log_path(self._client, self._pod), SILENCE_SECONDS, **query):
                if self._stop.is_set():
                    break
                at, _, text = line.partition(" ")
                self._last = max(at, self._last)
                if at > resumed:  # kubelets write all times with nine decimals; sinceTime repeats lines of that second
                    self._put(LogLine(self._pod.name, text))
        except Unavailable:
            return False
        except Forbidden as error:
            self._put(error)
        except ClusterError as error:
            self._put(LogLine(self._pod.name, str(error), is_note=True))
        return True


def _log_path(client: Client, pod: JobPod) -> str:
    return PODS.path(client.namespace, pod.name, "log")
