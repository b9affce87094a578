"""Options of the commands for jobs on a cluster, and the client that they make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_operator.cli import console
from omni_operator.cli.options import check_image
from omni_operator.plan.entrypoint import LOG

if TYPE_CHECKING:
    from omni_operator.client import Client

Name = Annotated[str, typer.Argument(help="Name of the job.", metavar="NAME")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.", metavar="NAME")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default: the current one.", metavar="NAME")
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        help="Kubeconfig; default: KUBECONFIG, else ~/.kube/config; in a pod without these, its service account.",
        metavar="FILE",
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="Image of the pod that reads the claim; default: the job's, else the operator's.",
        metavar="IMAGE",
        callback=check_image,
    ),
]
RUNS = "runs"  # the default of `drl run --runs`
LACKS_RIGHT = " cannot "  # User "x" cannot list resource "pods" in ...
RIGHTS = "ask for this right: docs/reference/cli.md lists each command's rights"


@contextmanager
def cluster_client(
    namespace: str | None, context: str | None, kubeconfig: str | None, name: str | None = None
) -> Iterator[Client]:
    """A client of the cluster; its errors are printed and end the command.

    Args:
        name: name of the job that the command is about, which may have run on this machine instead.
    """
    try:
        from omni_operator.client import (
            Client,
            InvalidName,
            JobExists,
            JobFinished,
            JobNotFound,
            NotScalable,
            UnusableKubeconfig,
        )
        from omni_operator.cluster.errors import ClusterError, Forbidden, KindAbsent
    except ModuleNotFoundError as error:
        console.refuse(f"not installed: {error.name}; install omni-operator[operator]")
    try:
        yield Client.from_kubeconfig(kubeconfig, context, namespace)
    except (UnusableKubeconfig, JobNotFound) as error:
        console.refuse(f"{error}{_local_run(name)}")
    except (InvalidName, JobExists, JobFinished, NotScalable, KindAbsent) as error:
        console.refuse(str(error))
    except Forbidden as error:
        # Pod Security forbids too, and says what it wants.
        told = f"; {RIGHTS}" if LACKS_RIGHT in str(error) else ""
        console.refuse(f"{error}{told}", console.FAILED)
    except ClusterError as error:
        console.refuse(str(error), console.FAILED)


def _local_run(name: str | None) -> str:
    """What to read of a run of that name on this machine, if there is one."""
    folder = Path(RUNS) / (name or "")
    if name is None or not (folder / LOG).is_file():
        return ""
    return (
        f". The run of that name on this machine is no job on a cluster: read {folder / LOG}, or run drl report {name}"
    )
