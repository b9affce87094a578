"""Daemons of a cluster: started with a log, known by id and start time, ended by id."""

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from . import deadlines
from .errors import CommandFailed, ProcessEnded, ToolMissing

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TAIL_LINES = 15
ADMINISTRATION = ("/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a process: PID and start time, because the kernel reuses PIDs.

    `started` counts clock ticks since the boot named by `boot`.
    """

    name: str
    pid: int
    started: int
    boot: str


def search_path(path: str) -> str:
    """A search path with the folders of an administrator, which an ordinary shell may lack."""
    return os.pathsep.join([path, *(folder for folder in ADMINISTRATION if folder not in path.split(os.pathsep))])


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment of a cluster's programs, without proxy variables: a proxy cannot reach addresses of this machine."""
    kept = {name: value for name, value in variables.items() if not name.lower().endswith("_proxy")}
    return kept | {"PATH": search_path(variables.get("PATH", os.defpath))}


def start_ticks(stat: str) -> int:
    """Field 22 of `/proc/PID/stat`; the name before it may hold spaces and parentheses."""
    return int(stat.rpartition(")")[2].split()[19])


def has_ended(stat: str) -> bool:
    """Whether `/proc/PID/stat` belongs to a zombie: a process that has ended and was not reaped yet.

    Field 3 is `Z` as soon as the first thread has ended; until field 20 is 1, other threads hold the process's ports.
    """
    fields = stat.rpartition(")")[2].split()
    return fields[0] in "ZX" and int(fields[17]) <= 1


def identify(name: str, pid: int) -> Identity | None:
    """The identity of a running process; None where there is none, or where it has ended and awaits collection."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if has_ended(stat) else Identity(name, pid, start_ticks(stat), BOOT_ID.read_text().strip())


def runs(identity: Identity) -> bool:
    """Whether this very process still runs, and not another that got its number."""
    return identify(identity.name, identity.pid) == identity


def kill(identities: Iterable[Identity]) -> None:
    """Kill processes and wait until all are gone. Nothing that a cluster writes is kept.

    Raises:
        DeadlinePassed: one does not end.
    """
    left = [identity for identity in identities if runs(identity)]
    for identity in left:
        try:
            os.kill(identity.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadlines.wait_until(f"the end of {[item.name for item in left]}", deadlines.PROCESS_END, lambda: gone(left))


def gone(identities: Iterable[Identity]) -> bool:
    """Whether all have ended; children of this process are collected on the way."""
    for identity in identities:
        with suppress(ChildProcessError):  # a child of another process, or collected already
            os.waitpid(identity.pid, os.WNOHANG)
        if runs(identity):
            return False
    return True


class Daemons:
    """The daemons of one cluster. Their identities are in `folder/processes`, their output in `folder/logs`.

    Args:
        folder: folder of the cluster's state.
        bound: whether they end with the thread that starts them, however it ends.
    """

    def __init__(self, folder: Path, *, bound: bool) -> None:
        self.logs = folder / "logs"
        self._records = folder / "processes"
        self._bound = bound
        self.logs.mkdir(parents=True, exist_ok=True)
        self._records.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> Identity:
        """Start a daemon in a new session, so that a Ctrl-C at the terminal does not reach it.

        Raises:
            ProcessEnded: it ended before it could be recorded.
            ToolMissing: there is no such program.
        """
        binding = ["setpriv", "--pdeathsig", "KILL", "--"] if self._bound else []
        with (self.logs / f"{name}.log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    [*binding, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment(os.environ),
                )
            except FileNotFoundError as error:
                raise ToolMissing(f"{error.filename} is missing") from error
        identity = identify(name, process.pid)
        if identity is None:
            process.wait()
            raise ProcessEnded(f"{name} ended at once:\n{self.tail(name)}")
        process.returncode = 0  # collected by `gone`, perhaps from another process: Popen has nothing to warn of
        part = self._records / f".{name}"
        part.write_text(json.dumps(asdict(identity)), encoding="utf-8")
        part.rename(self._records / f"{name}.json")
        return identity

    def recorded(self) -> list[Identity]:
        """Every process that was started here, running or not."""
        return [Identity(**json.loads(path.read_text(encoding="utf-8"))) for path in self._records.glob("*.json")]

    def check(self) -> None:
        """Refuse to go on where a daemon has ended.

        Raises:
            ProcessEnded: with the last lines it wrote.
        """
        for identity in self.recorded():
            if not runs(identity):
                raise ProcessEnded(f"{identity.name} ended:\n{self.tail(identity.name)}")

    def stop(self, name: str) -> None:
        """End one daemon and forget it."""
        path = self._records / f"{name}.json"
        if path.exists():
            kill([Identity(**json.loads(path.read_text(encoding="utf-8")))])
            path.unlink()

    def stop_all(self) -> None:
        """End all of them."""
        kill(self.recorded())

    def tail(self, name: str) -> str:
        """The last lines of a daemon's log."""
        path = self.logs / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-TAIL_LINES:])


def run(command: Sequence[str], *, deadline: float = deadlines.COMMAND, text: str | None = None) -> str:
    """Run a command to its end and return what it printed.

    Raises:
        CommandFailed: it failed or passed its deadline; the message has the command and its output.
        ToolMissing: there is no such program.
    """
    shown = " ".join(command)[:300]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
            env=environment(os.environ),
        )
    except FileNotFoundError as error:
        raise ToolMissing(f"{command[0]} is missing, needed for: {shown}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"passed {deadline:g} s: {shown}") from error
    if done.returncode != 0:
        raise CommandFailed(f"ended with {done.returncode}: {shown}\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
