"""`ReplicaPool`: keeps as many replicas of an engine or a judge as the nodes have room for, while a run goes on."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from verl_omni.trainer.replicas.replica_launcher import RayLauncher
from verl_omni.trainer.replicas.replica_reports import JoinTimes, ReplicaReports
from verl_omni.utils.root_cause import describe_error

logger = logging.getLogger(__name__)
POLL_SECONDS = 5.0
# for the threads to end, and between the attempts to end them
STOP_SECONDS = 30.0
GIVE_UP_SECONDS = 0.5
# before another one is started after a failure
RETRY_SECONDS = 10.0
RETRY_MOST_SECONDS = 300.0


class Members(Protocol):
    """The replicas of a pool, and the router that sends requests to them. Its methods may be called from any thread."""

    reports: ReplicaReports

    def all(self) -> list[Any]:
        """The replicas that serve, and those that are about to."""

    def served(self, replica: Any) -> bool:
        """Whether a replica that has joined gets requests, or is known to have got some before it was lost."""

    def join(self, replica: Any, times: JoinTimes) -> None:
        """Add a replica that has started.

        Raises:
            Exception: it was not added.
        """

    def lose(self, replica: Any, reason: str) -> None:
        """Remove a lost replica."""

    def leave(self, replica: Any) -> bool:
        """Send a replica no more requests; it may finish those that it has.

        Returns:
            Whether it had not been lost before, by another thread.
        """

    def take_left(self) -> list[Any]:
        """Replicas whose processes must be stopped; each is returned once."""


M = TypeVar("M", bound=Members)


class ReplicaPool(Generic[M]):
    """Starts a replica wherever a node has room for one, and removes replicas whose node is lost or being removed.

    On a node that is being removed, a replica finishes its samples and is then stopped. Ray ends such a node when
    nothing runs on it.

    A thread polls the nodes every `POLL_SECONDS`. Each start runs in a separate thread, because loading a model takes
    minutes. Ranks are never reused, so names of new actors cannot collide with the actors of a lost replica.

    Args:
        looked: called after each poll, with `Room.hosts`.
        noun: name of a replica in messages.
        failing: what happened to one that started, and that `Members.served` does not know.
    """

    def __init__(
        self,
        updates: M,
        launcher: RayLauncher,
        first_rank: int,
        *,
        looked: Callable[[Mapping[str, int]], None],
        noun: str = "replica",
        failing: str = "was lost before it served",
        clock: Callable[[], float] = time.monotonic,
        run: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.updates = updates
        self._launcher = launcher
        self._rank = first_rank
        self._looked = looked
        self._noun = noun
        self._failing = failing
        self._clock = clock
        self._run = run or _in_thread
        self._starting = 0
        self._leaving: list[Any] = []
        self._ending: list[Any] = []  # replicas from `take_left` that are not stopped yet
        self._unproven: set[int] = set()  # ranks of replicas that have started, and have not served yet
        # starts in a row after which no replica served
        self._failures = 0
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"{noun} pool", daemon=True)

    def start(self) -> None:
        """Start to look at the nodes."""
        self._thread.start()

    def stop(self) -> list[Any]:
        """Start nothing any more, and end the starts that go on. Returns all replicas that are not stopped.

        Waits for the threads: Ray ends a process with exit code 1 if a thread calls it after it was disconnected.
        """
        self._stopping.set()
        latest = time.monotonic() + STOP_SECONDS
        while self._busy() and time.monotonic() < latest:
            self._launcher.give_up()
            time.sleep(GIVE_UP_SECONDS)
        return [*self.updates.all(), *self._leaving, *self._ending, *self.updates.take_left()]

    def _busy(self) -> bool:
        with self._lock:
            return self._starting > 0 or self._thread.is_alive()

    def look(self) -> None:
        """Act on what has changed since the last look."""
        known = [*self.updates.all(), *self._leaving]
        room = self._launcher.room(known)
        for replica in known:
            if replica.replica_rank in room.gone:
                self._gone(replica)
            elif replica in self._leaving:
                self._stop_when_idle(replica)
            elif replica.replica_rank in room.leaving:
                self._excuse(replica)
                if self.updates.leave(replica):
                    self._leaving.append(replica)
        left = self.updates.take_left()
        self._prove([*self.updates.all(), *left])
        self._ending += left
        while self._ending:  # an error leaves the others to the next look
            self._launcher.stop(self._ending[0])
            self._left(self._ending.pop(0))
        with self._lock:
            missing = max(0, room.replicas - len(self.updates.all()) - self._starting)
            if self._clock() < self._retry_at or self._stopping.is_set():
                missing = 0
            self._starting += missing
            first = self._rank
            self._rank = self._rank + missing
        for rank in range(first, first + missing):
            self._run(lambda rank=rank: self._start(rank))  # type: ignore[misc]
        self._looked(room.hosts)

    def _prove(self, replicas: Iterable[Any]) -> None:
        """Start without a pause again once a replica that was started serves, or has served between two looks."""
        served = {replica.replica_rank for replica in replicas if self.updates.served(replica)}
        with self._lock:
            if served & self._unproven:
                self._unproven -= served
                self._failures = 0

    def _left(self, replica: Any) -> None:
        """Count a replica that was lost before it served as one that did not start: the next one may fail like it."""
        with self._lock:
            unproven = replica.replica_rank in self._unproven
            self._unproven.discard(replica.replica_rank)
        if unproven:
            self._failed(f"{self._noun} {replica.replica_rank} started, and {self._failing}", None)

    def _failed(self, what: str, error: BaseException | None) -> None:
        """Pause before the next start, after each failure twice as long."""
        with self._lock:
            self._failures += 1
            pause = min(RETRY_SECONDS * 2.0 ** (self._failures - 1), RETRY_MOST_SECONDS)
            self._retry_at = self._clock() + pause
        if not self._stopping.is_set():
            text = f"{what}, next try in {pause:g} s" + (f": {describe_error(error)}" if error else "")
            self.updates.reports.start_failed(text)

    def _excuse(self, replica: Any) -> None:
        """Do not count the end of a replica as a failure: its node goes."""
        with self._lock:
            self._unproven.discard(replica.replica_rank)

    def _gone(self, replica: Any) -> None:
        self._excuse(replica)
        if replica in self._leaving:
            self._leaving.remove(replica)
            self._launcher.stop(replica)
        else:
            self.updates.lose(replica, "its node is gone")

    def _stop_when_idle(self, replica: Any) -> None:
        """Stop a replica one look or more after it has left the router: a request may have been on its way then."""
        if self._launcher.idle(replica):
            self._leaving.remove(replica)
            self._launcher.stop(replica)
            self.updates.reports.drained(replica.replica_rank)

    def _start(self, rank: int) -> None:
        try:
            self._join(*self._launcher.start(rank))
        except Exception as error:  # noqa: BLE001  a node may disappear at any moment; the run goes on without it
            self._failed(f"{self._noun} {rank} did not start", error)
        finally:  # also if the failure cannot be reported: its place would be taken for ever
            with self._lock:
                self._starting -= 1

    def _join(self, replica: Any, times: JoinTimes) -> None:
        try:
            with self._lock:
                self.updates.join(replica, times)
                self._unproven.add(replica.replica_rank)
        except Exception:
            self._launcher.stop(replica)  # else its place is taken for ever
            raise

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self.look()
            except Exception:  # the trainer meets what is wrong, and the next look may succeed
                logger.exception("each %s could not be managed; trying again in %g s", self._noun, POLL_SECONDS)


def _in_thread(action: Callable[[], None]) -> None:
    threading.Thread(target=action, name="replica-start", daemon=True).start()
