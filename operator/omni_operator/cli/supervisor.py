"""Running the trainer as a child: its end, its events and the user's Ctrl-C, in one loop."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import parent_death

LOOK_SECONDS = 0.25  # how often the progress file is looked at
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a child ended: its exit code, negative for a signal, and whether the user had asked for it."""

    code: int
    asked: int  # times


@dataclass(slots=True)
class StopEscalation:
    """PURE: the user's stop requests and the time -> the next signal for the child.

    SIGINT asks for a checkpoint, SIGTERM for an end at once; a child that is still there `patience` seconds
    after that, or at the third request, is killed with its group.
    """

    patience: float
    asked: int = 0
    deadline: float | None = None
    killed: bool = False

    def request(self, now: float) -> signal.Signals:
        """One more request."""
        self.asked += 1
        if self.asked == 1:
            return signal.SIGINT
        if self.asked == 2:
            self.deadline = now + self.patience
            return signal.SIGTERM
        return self._kill()

    def overdue(self, now: float) -> signal.Signals | None:
        """What the time asks for."""
        if self.killed or self.deadline is None or now < self.deadline:
            return None
        return self._kill()

    def _kill(self) -> signal.Signals:
        self.killed = True
        return signal.SIGKILL


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    keep_open: Sequence[int],
    patience: float,
    look: Callable[[], None],
    stopping: Callable[[signal.Signals], None],
) -> ChildExit:
    """Run a command in its own session until it ends.

    Args:
        log: gets its output, after what is there already.
        keep_open: descriptors that the child inherits.
        look: called now and then, and once after the end.
        stopping: told which signal is being sent.

    Returns:
        how it ended.

    The kernel ends it too should this process die without a word.
    """
    escalation = StopEscalation(patience)
    with _requests() as requests, log.open("ab") as output:
        trainer = subprocess.Popen(
            parent_death.wrap_command(command), env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, pass_fds=keep_open,
        )  # fmt: skip
        try:
            _until_it_ends(trainer, requests, escalation, look, stopping)
        except BaseException:
            # This program failed (its output was closed, say): the run must not go on unseen.
            _end(trainer, patience)
            raise
    return ChildExit(trainer.wait(), escalation.asked)


def _until_it_ends(
    trainer: subprocess.Popen[bytes],
    requests: socket.socket,
    escalation: StopEscalation,
    look: Callable[[], None],
    stopping: Callable[[signal.Signals], None],
) -> None:
    with selectors.DefaultSelector() as selector:
        ended = os.pidfd_open(trainer.pid)
        try:
            selector.register(ended, selectors.EVENT_READ)
            selector.register(requests, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(LOOK_SECONDS)}
                look()
                if ended in ready:
                    return
                wanted = escalation.request(time.monotonic()) if requests in ready and requests.recv(1) else None
                if number := wanted or escalation.overdue(time.monotonic()):
                    stopping(number)
                    _signal(trainer, number)
        finally:
            os.close(ended)


def _signal(trainer: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Ray's workers must not see the first ones, or there would be nobody left to write a checkpoint with."""
    if number == signal.SIGKILL:
        os.killpg(trainer.pid, number)
    else:
        trainer.send_signal(number)


def _end(trainer: subprocess.Popen[bytes], patience: float) -> None:
    trainer.terminate()
    try:
        trainer.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()


@contextmanager
def _requests() -> Iterator[socket.socket]:
    """A socket with a byte for every request to stop; Python's own handling is back afterwards."""
    inbox, outbox = socket.socketpair()
    with inbox, outbox:
        outbox.setblocking(False)
        old_descriptor = signal.set_wakeup_fd(outbox.fileno(), warn_on_full_buffer=False)
        old_handlers = {number: signal.signal(number, _only_wake) for number in STOP_SIGNALS}
        try:
            yield inbox
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_descriptor)


def _only_wake(number: int, frame: object) -> None:
    """The byte in the socket says it all."""
