"""`drl list`, `get`, `why`, `suspend`, `resume`, `scale`, `cancel` and `wait`: jobs on a cluster."""

from __future__ import annotations

import json
from typing import Annotated, get_args

import typer

from omni_operator.api.status import JobState
from omni_operator.api.suggestions import did_you_mean

from . import console
from .cluster_options import Context, Kubeconfig, Name, Namespace, cluster_client
from .options import Json


def list_jobs(
    as_json: Json = False, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """List the jobs of a namespace on a cluster."""
    with cluster_client(namespace, context, kubeconfig) as client:
        jobs = client.list()
        if as_json:
            _say_json([job.body for job in jobs])
            return
        if not jobs:
            console.note(f"no jobs in namespace {client.namespace}")
            return
        rows: list[tuple[str, ...]] = [("NAME", "STATE", "REASON", "STEP", "REWARD")]
        for job in jobs:
            status, progress = job.status, job.status.progress
            row = (status.state, status.reason, progress.summary, progress.reward_summary)
            rows.append((job.name, *(cell or "-" for cell in row)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for cells in rows:
            console.say("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def get(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the conditions of a job on a cluster.

    With --json, prints the whole object.
    """
    with cluster_client(namespace, context, kubeconfig, name) as client:
        job = client.get(name)
        if as_json:
            _say_json(job.body)
            return
        unknown = "no state yet" if job.status.conditions else "not seen by an operator"
        console.say(f"{job.name}: {job.status.state or unknown}")
        for condition in job.status.conditions:
            said = f": {condition.message}" if condition.message else ""
            console.say(f"  {condition.type:17} {condition.status:7} {condition.reason}{said}")


def why(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say what holds a job on a cluster, since when, and what to do."""
    with cluster_client(namespace, context, kubeconfig, name) as client:
        from omni_operator.client.explanation import explain
        from omni_operator.client.surroundings import read_surroundings

        job = client.get(name)
        around = read_surroundings(client, job)
        text = explain(job.name, job.status, job.created, job.deleted, around)
        _say(as_json, {"name": name, "state": job.status.state, "reason": job.status.reason, "text": text}, text)


def suspend(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Suspend a job on a cluster.

    The operator follows spec.suspendPolicy, such as saving a checkpoint, then deletes the pods.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        changed = client.suspend(name)
        text = f"{name}: suspension requested" if changed else f"{name}: spec.suspend is already true"
        _say(as_json, {"name": name, "changed": changed}, text)


def resume(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Resume a suspended job on a cluster from its last checkpoint."""
    with cluster_client(namespace, context, kubeconfig) as client:
        changed = client.suspend(name, suspended=False)
        text = f"{name}: resumed" if changed else f"{name}: not suspended"
        _say(as_json, {"name": name, "changed": changed}, text)


def scale(
    name: Name,
    replicas: Annotated[int, typer.Option("--replicas", help="Number of rollout pods.", metavar="N", min=1)],
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change the number of rollout pods of a job on a cluster.

    Also while it runs. The job needs spec.rollout.placement: Separate.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        before = client.scale(name, replicas)
        value = {"name": name, "changed": before != replicas, "replicas": replicas}
        changed = f"{replicas}, was {before}" if before != replicas else f"already {before}"
        _say(as_json, value, f"{name}: spec.rollout.replicas is {changed}")


def cancel(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete a job and its pods from a cluster, after confirmation."""
    with cluster_client(namespace, context, kubeconfig) as client:
        job = client.get(name)
        checkpoint = job.body["spec"].get("checkpoint") or {}
        claim = checkpoint.get("claimName")
        kept = f"the run folder on the claim {claim} is kept" if claim else "the job names no claim for its run folder"
        if not yes and not _confirmed(f"Delete job {name} of namespace {client.namespace}? {kept}"):
            console.refuse("nothing was deleted")
        client.cancel(job)  # the one that the user has seen
        _say(as_json, {"name": name, "claim": claim}, f"{name}: deletion requested; {kept}")


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # standard input is closed
        typer.echo(err=True)
        console.refuse("nothing was deleted: without a terminal to answer on, give --yes")


def wait(
    name: Name,
    state: Annotated[str, typer.Option("--for", help="State to wait for.", metavar="STATE")] = "Succeeded",
    timeout: Annotated[float, typer.Option("--timeout", help="Time limit.", metavar="SECONDS", min=0)] = 3600.0,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait until a job on a cluster is in a state.

    The exit code is 1 if the job ends in another state, or the time is over. With --json, prints the whole object.
    """
    states = get_args(JobState)
    if state not in states:
        console.refuse(f"--for {state}: no such state; one of {', '.join(states)}{did_you_mean(state, states)}")
    with cluster_client(namespace, context, kubeconfig) as client:
        try:
            job = client.wait(name, state, timeout)
        except TimeoutError as error:
            console.refuse(str(error), console.FAILED)
        found = job.status.state
        if as_json:
            _say_json(job.body)
        if found != state:
            console.refuse(f"{name} is {found}; run drl why {name}", console.FAILED)
        if not as_json:
            console.say(f"{name} is {found}")


def _say(as_json: bool, value: object, text: str) -> None:
    """Print what a command has to say, as JSON or as text."""
    if as_json:
        _say_json(value)
    else:
        console.say(text)


def _say_json(value: object) -> None:
    console.say(json.dumps(value, indent=2, ensure_ascii=False))
