"""`drl fetch`: copy the results of a job from a cluster."""

import json
from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli import console
from omni_operator.cli.options import Json

from .cluster_options import Context, Image, Kubeconfig, Name, Namespace, cluster_client


def fetch(
    name: Name,
    to: Annotated[Path | None, typer.Option("--to", help="Folder; default: runs/NAME.", metavar="DIR")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="All checkpoints and adapters; default: only the newest adapter.")
    ] = False,
    image: Image = None,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Copy the results of a job from a cluster.

    Example: drl fetch my-job --to results

    They are report, metrics, logs, samples and adapter. Reads them in a running pod of the job. If there is none, a
    pod is made that mounts the job's claim for reading; it is deleted at the end.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        from omni_operator.client.archive import FolderTaken
        from omni_operator.client.fetched_results import fetch as fetch_results

        job = client.get(name)
        try:
            done = fetch_results(
                client, job, to or Path("runs", name), image, checkpoints=checkpoints, note=console.note
            )
        except FolderTaken as error:
            console.refuse(f"{error}; give --to an empty or new folder")
        except OSError as error:
            console.refuse(f"cannot write: {error}", console.FAILED)
        except KeyboardInterrupt:
            raise typer.Exit(console.INTERRUPTED) from None
        if as_json:
            # In ASCII: names of files need not be valid UTF-8, and such text cannot be printed.
            console.say(json.dumps({"folder": str(done.folder), "files": list(done.files)}))
            return
        console.say(f"{len(done.files)} files of {name} in {done.folder}")
        if "report.html" in done.files:
            console.say(f"report: {done.folder / 'report.html'}")
