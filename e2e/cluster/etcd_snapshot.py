"""Snapshots of a control plane's etcd: kept while it is stopped, and restored under the same address later.

Versions of objects go back with it, as with `etcdutl snapshot restore` without `--bump-revision`.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import commands, deadlines
from .control_plane import ControlPlane, checked

CLIENTS = {
    "kube-controller-manager": commands.controller_manager,
    "kube-scheduler": commands.scheduler,
    "kwok": commands.kwok,
}


def save(plane: ControlPlane, snapshot: Path) -> None:
    """Stop the control plane, copy the data of etcd to a new folder, and start it again."""
    with _stopped(plane):
        shutil.copytree(_data(plane), snapshot)


def restore(plane: ControlPlane, snapshot: Path) -> None:
    """Stop the control plane, replace the data of etcd by a copy of a snapshot, and start it again.

    All components start again, as a restore requires: what they have in memory would be newer than etcd.
    """
    with _stopped(plane):
        shutil.rmtree(_data(plane))
        shutil.copytree(snapshot, _data(plane))


def _data(plane: ControlPlane) -> Path:
    return plane.layout.folder / "etcd"


@contextmanager
def _stopped(plane: ControlPlane) -> Iterator[None]:
    """Stop everything, and start it again at the end.

    Raises:
        ProcessEnded: one of the processes ended at the start.
        DeadlinePassed: the API server does not become ready.
    """
    for name in (*CLIENTS, "kube-apiserver", "etcd"):
        plane.daemons.stop(name)
    yield
    plane.daemons.start("etcd", commands.etcd(plane.layout))
    plane.daemons.start("kube-apiserver", commands.api_server(plane.layout))
    with plane.api("e2e-start") as api:
        deadlines.wait_until("the API server", deadlines.API_READY, lambda: checked(plane.daemons, api.ready))
    for name, command in CLIENTS.items():
        plane.daemons.start(name, command(plane.layout))
