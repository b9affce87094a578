"""`drl logs`: the output of a job on a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from . import console
from .cluster_options import Context, Kubeconfig, Name, Namespace, cluster_client

if TYPE_CHECKING:
    from omni_operator.client.logs import LogLine


def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    pod: Annotated[
        str | None,
        typer.Option(
            "--pod",
            help="One pod, or all of a role: head, trainer (default), rollout or reward.",
            metavar="NAME",
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", help="Only the last N lines of each pod.", metavar="N", min=0)
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the output of a job's pods on a cluster: the trainer's, with that of all its ranks.

    After the pods are gone, says where the output was kept.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        from omni_operator.client.logs import PodNotFound, find_pods, follow_logs, read_logs, select_pods
        from omni_operator.client.pods import run_place

        job = client.get(name)
        state = job.status.state or "not seen by an operator"
        try:
            pods = select_pods(find_pods(client, job), pod)
            if not pods and (job.status.finished or not follow):
                place = run_place(job.body)
                said = place.describe_log() if job.status.attempts and place else f"run drl why {name}"
                console.refuse(f"{name} is {state} and has no pods; {said}", console.FAILED)
            if follow and all(found.phase == "Pending" for found in pods):
                console.note(f"{name} is {state}, and its pods do not run yet; drl why {name} tells why")
            many = len(pods) > 1 or (pod is None and (job.body["spec"]["trainer"].get("replicas") or 1) > 1)
            _print(follow_logs(client, name, pod, tail) if follow else read_logs(client, pods, tail), many=many)
        except PodNotFound as error:
            console.refuse(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(console.INTERRUPTED) from None


def _print(lines: Iterable[LogLine], *, many: bool) -> None:
    for line in lines:
        if line.is_note:
            console.note(f"{line.pod}: {line.text}")
        else:
            console.say(f"[{line.pod}] {line.text}" if many else line.text)
