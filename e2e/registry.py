"""A real registry of images and charts on this machine: Debian's docker-registry."""

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import deadlines
from e2e.cluster.errors import DeadlinePassed
from e2e.cluster.paths import cache
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import Say
from e2e.debian_package import unpack

PROGRAM = "docker-registry"
LOOPBACK = "127.0.0.1"
ANSWERS_S = 20.0


def ensure(say: Say = print) -> Path:
    """The registry program: the installed one, or the one in Debian's package.

    Raises:
        ToolMissing: there is neither.
    """
    if installed := shutil.which(PROGRAM):
        return Path(installed)
    kept = cache() / PROGRAM
    unpack(PROGRAM, kept, "5 MB", say)
    return kept / "usr" / "bin" / PROGRAM


def skopeo(say: Say = print) -> Path:
    """The program that copies images: the installed one, or the one in Debian's package.

    Raises:
        ToolMissing: there is neither.
    """
    if installed := shutil.which("skopeo"):
        return Path(installed)
    kept = cache() / "skopeo-with-libraries"
    unpack("skopeo", kept, "15 MB", say, dependencies=True)
    program = kept / "skopeo"
    if not program.exists():
        libraries = ":".join(sorted({str(file.parent) for file in (kept / "usr" / "lib").rglob("*.so*")}))
        policy = kept / "etc" / "containers" / "policy.json"
        options = f"--policy={policy}" if policy.exists() else ""
        program.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{kept}/usr/bin/skopeo" {options} "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)
    return program


@contextmanager
def registry(folder: Path, host: str = LOOPBACK) -> Iterator[str]:
    """The address `HOST:PORT` of a registry without TLS that keeps its content in `folder`, until the end of the block.

    Args:
        host: an address of this machine.

    Raises:
        ToolMissing: the program is not there. DeadlinePassed: it does not answer.
    """
    program = ensure()
    (port,) = free_ports(1, random.Random(os.getpid()))
    settings = folder / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'content'}}}}}\n"
        f"http: {{addr: '{host}:{port}'}}\n",
        encoding="utf-8",
    )
    with subprocess.Popen([str(program), "serve", str(settings)], stderr=subprocess.DEVNULL) as process:
        try:
            _await(host, port, process)
            yield f"{host}:{port}"
        finally:
            process.terminate()
            process.wait(deadlines.COMMAND)


def _await(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + ANSWERS_S
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise DeadlinePassed(f"the registry does not answer at {host}:{port} (exit code {process.poll()})")
