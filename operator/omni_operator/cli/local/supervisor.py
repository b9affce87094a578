"""The trainer as a child process: its exit, its progress and the user's Ctrl-C, in one event loop."""

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

POLL_SECONDS = 0.25  # how often the progress file is read
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a child process ended.

    Attributes:
        code: exit code, negative for a signal.
        stop_requests: how often the user asked for it.
    """

    code: int
    stop_requests: int


@dataclass(slots=True)
class StopEscalation:
    """PURE: the next signal for the child, from the user's stop requests and the time.

    The first request sends SIGINT, which asks for a checkpoint; the second SIGTERM. A child that still runs
    `patience` seconds later, or at the third request, is killed with its process group.
    """

    patience: float
    requests: int = 0
    deadline: float | None = None
    killed: bool = False

    def request(self, now: float) -> signal.Signals:
        """The signal for one more request."""
        self.requests += 1
        if self.requests == 1:
            return signal.SIGINT
        if self.requests == 2:
            self.deadline = now + self.patience
            return signal.SIGTERM
        return self._kill()

    def overdue(self, now: float) -> signal.Signals | None:
        """The signal that is due at this time, if any."""
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
    poll: Callable[[], None],
    on_signal: Callable[[signal.Signals], None],
) -> ChildExit:
    """Run a command in its own session until it ends. If this process dies, the kernel stops the command.

    Args:
        log: file to which its output is appended.
        keep_open: descriptors that the child inherits.
        patience: seconds between SIGTERM and SIGKILL.
        poll: called every `POLL_SECONDS`, and once after the end.
        on_signal: called before a signal is sent.
    """
    escalation = StopEscalation(patience)
    with _requests() as requests, log.open("ab") as output:
        trainer = subprocess.Popen(
            parent_death.wrap_command(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=keep_open,
        )
        try:
            _wait_for_exit(trainer, requests, escalation, poll, on_signal)
        except BaseException:
            # This program failed, e.g. because its output was closed: do not leave the trainer running.
            _terminate(trainer, patience)
            raise
    return ChildExit(trainer.wait(), escalation.requests)


def _wait_for_exit(
    trainer: subprocess.Popen[bytes],
    requests: socket.socket,
    escalation: StopEscalation,
    poll: Callable[[], None],
    on_signal: Callable[[signal.Signals], None],
) -> None:
    with selectors.DefaultSelector() as selector:
        ended = os.pidfd_open(trainer.pid)
        try:
            selector.register(ended, selectors.EVENT_READ)
            selector.register(requests, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(POLL_SECONDS)}
                poll()
                if ended in ready:
                    return
                due = escalation.request(time.monotonic()) if requests in ready and requests.recv(1) else None
                if number := due or escalation.overdue(time.monotonic()):
                    on_signal(number)
                    _signal(trainer, number)
        finally:
            os.close(ended)


def _signal(trainer: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """SIGINT and SIGTERM go to the trainer alone: it needs Ray's workers to write a checkpoint."""
    if number == signal.SIGKILL:
        os.killpg(trainer.pid, number)
    else:
        trainer.send_signal(number)


def _terminate(trainer: subprocess.Popen[bytes], patience: float) -> None:
    trainer.terminate()
    try:
        trainer.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()


@contextmanager
def _requests() -> Iterator[socket.socket]:
    """A socket that receives a byte for every stop signal; the previous handlers are restored at the end."""
    inbox, outbox = socket.socketpair()
    with inbox, outbox:
        outbox.setblocking(False)
        old_descriptor = signal.set_wakeup_fd(outbox.fileno(), warn_on_full_buffer=False)
        old_handlers = {number: signal.signal(number, _ignore) for number in STOP_SIGNALS}
        try:
            yield inbox
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_descriptor)


def _ignore(number: int, frame: object) -> None:
    """The wake-up descriptor has already reported the signal."""
