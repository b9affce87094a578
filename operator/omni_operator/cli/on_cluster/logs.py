"""`drl logs`: the output of a job on a cluster."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_operator.api.names import TRAINER_GROUP
from omni_operator.cli import console
from omni_operator.cli.options import Json
from omni_operator.plan.entrypoint import LOG

from .cluster_options import Context, Image, Kubeconfig, Name, Namespace, cluster_client

if TYPE_CHECKING:
    from omni_operator.client import Client, Job
    from omni_operator.client.pod_logs import LogLine

Say = Callable[[str | None, str], None]  # prints a line of a pod; None: of train.log


def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    pod: Annotated[
        str | None,
        typer.Option(
            "--pod", help="One pod, or all of a role: head, trainer (default), rollout or reward.", metavar="NAME"
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", help="Only the last N lines of each pod.", metavar="N", min=0)
    ] = None,
    image: Image = None,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the output of a job on a cluster.

    Example: drl logs my-job --follow

    The output comes from the trainer's pods, with all ranks, or from the pods that --pod names. After the pods are
    gone, prints train.log from the job's claim, by a pod that mounts it and is deleted at the end. With --json, prints
    an object for each line: its pod, which is null for train.log, and its text.
    """
    with cluster_client(namespace, context, kubeconfig, name) as client:
        from omni_operator.client.pod_logs import PodNotFound, find_pods, follow_logs, read_logs, select_pods

        job = client.get(name)
        state = job.status.state or "not seen by an operator"
        try:
            pods = select_pods(find_pods(client, job), pod)
            if not pods and (job.status.finished or not follow):
                kept = job.status.attempts and (job.status.finished or state == "Suspended")
                if not kept or pod not in (None, TRAINER_GROUP):
                    told = "only the trainer's output is kept" if kept else f"run drl why {name}"
                    console.refuse(f"{name} is {state} and has no pods; {told}", console.FAILED)
                _print_kept(client, job, image, tail, _say_json if as_json else _say)
                return
            if follow and all(observed.phase == "Pending" for observed in pods):
                console.note(f"{name} is {state}, and its pods do not run yet; drl why {name} tells why")
            many = len(pods) > 1 or (pod is None and (job.body["spec"]["trainer"].get("replicas") or 1) > 1)
            say = _say_json if as_json else _say_with_pod if many else _say
            _print(follow_logs(client, name, pod, tail) if follow else read_logs(client, pods, tail), say)
        except PodNotFound as error:
            console.refuse(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(console.INTERRUPTED) from None


def _print_kept(client: Client, job: Job, image: str | None, tail: int | None, say: Say) -> None:
    """Print train.log, or its last lines, from the claim of a job without pods."""
    from omni_operator.client.fetched_results import fetch
    from omni_operator.client.job_pods import run_place
    from omni_operator.cluster.errors import ClusterError

    run = run_place(job.body)
    with tempfile.TemporaryDirectory(prefix="drl-logs-") as folder:
        try:
            fetch(client, job, Path(folder, "run"), image, only=LOG, note=console.note)
        except ClusterError as error:
            kept_at = f"; {run.describe_log()}" if run and run.claim else ""
            console.refuse(f"{error}{kept_at}", console.FAILED)
        with Path(folder, "run", LOG).open(encoding="utf-8", errors="replace") as kept:
            for line in kept if tail is None else deque(kept, maxlen=tail):
                say(None, line.rstrip("\n"))


def _print(lines: Iterable[LogLine], say: Say) -> None:
    for line in lines:
        if line.is_note:
            console.note(f"{line.pod}: {line.text}")
        else:
            say(line.pod, line.text)


# Lines are printed as they are, like `kubectl logs`: programs color them.


def _say(pod: str | None, text: str) -> None:
    typer.echo(text)


def _say_with_pod(pod: str | None, text: str) -> None:
    typer.echo(f"[{pod}] {text}")


def _say_json(pod: str | None, text: str) -> None:
    typer.echo(json.dumps({"pod": pod, "text": text}, ensure_ascii=False))
