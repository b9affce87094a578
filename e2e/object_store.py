"""A real S3 server on the loopback: versitygw on a folder, with signatures checked."""

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import deadlines
from e2e.cluster.errors import DeadlinePassed
from e2e.cluster.ports import free_ports
from e2e.cluster.tools import S3, ensure

KEY = "test-key"
SECRET = "test-secret"
ANSWERS_S = 20.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running server. A bucket is a folder of `folder`, an object a file."""

    endpoint: str
    folder: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables of a program that may use it."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}

    def bucket(self, name: str) -> Path:
        """The folder of a bucket, which is made if it is not there."""
        bucket = self.folder / name
        bucket.mkdir(exist_ok=True)
        return bucket


@contextmanager
def object_store(folder: Path, address: str = "127.0.0.1", port: int | None = None) -> Iterator[ObjectStore]:
    """Serve `folder` until the end of the block.

    Raises:
        ToolMissing: the server is not built, and there is no Go. DeadlinePassed: it does not answer.
    """
    program = ensure((S3,)).path(S3)
    port = port or free_ports(1, random.Random(os.getpid()))[0]
    buckets = folder / "buckets"
    side = folder / "attributes"
    for directory in (buckets, side):
        directory.mkdir(parents=True, exist_ok=True)
    command = [
        str(program),
        "--quiet",
        "--port",
        f"{address}:{port}",
        "--access",
        KEY,
        "--secret",
        SECRET,
        "posix",
        "--sidecar",
        str(side),
        str(buckets),
    ]
    with (folder / "server.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _await(address, port, process)
            yield ObjectStore(f"http://{address}:{port}", buckets)
        finally:
            process.terminate()
            process.wait(deadlines.COMMAND)


def _await(address: str, port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + ANSWERS_S
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise DeadlinePassed(f"versitygw does not answer on {address}:{port} (exit code {process.poll()})")
