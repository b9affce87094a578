"""`drl why`, `suspend`, `resume` and `scale`: jobs on a cluster. What lists, waits and deletes is kubectl."""

from typing import Annotated

import typer

from omni_operator.cli import console
from omni_operator.cli.options import Json

from .cluster_options import Context, Kubeconfig, Name, Namespace, cluster_client


def why(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say what holds a job on a cluster, since when, and what to do.

    Example: drl why my-job
    """
    with cluster_client(namespace, context, kubeconfig, name) as client:
        from omni_operator.client.explanation import explain
        from omni_operator.client.surroundings import read_surroundings

        job = client.get(name)
        around = read_surroundings(client, job)
        text = explain(job.name, job.status, job.created, job.deleted, around, job.finalizers)
        _say(as_json, {"name": name, "state": job.status.state, "reason": job.status.reason, "text": text}, text)


def suspend(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Suspend a job on a cluster.

    Example: drl suspend my-job

    The operator follows spec.suspendPolicy, such as saving a checkpoint, then deletes the pods.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        from omni_operator.client.explanation import loses_checkpoints

        changed = client.suspend(name)
        if changed and loses_checkpoints(client.get(name).status):
            console.note(
                f"{name} names no claim (spec.checkpoint.claimName): its checkpoints are deleted with the pods, and "
                f"drl resume {name} starts it again"
            )
        text = f"{name}: suspension requested" if changed else f"{name}: spec.suspend is already true"
        _say(as_json, {"name": name, "changed": changed}, text)


def resume(
    name: Name,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Resume a suspended job on a cluster from its last checkpoint.

    Example: drl resume my-job
    """
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

    Example: drl scale my-job --replicas 4

    Also while it runs. The job needs spec.rollout.placement: Separate.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        before = client.scale(name, replicas)
        value = {"name": name, "changed": before != replicas, "replicas": replicas}
        changed = f"{replicas}, was {before}" if before != replicas else f"already {before}"
        _say(as_json, value, f"{name}: spec.rollout.replicas is {changed}")


def _say(as_json: bool, value: object, text: str) -> None:
    """Print what a command has to say, as JSON or as text."""
    if as_json:
        console.say_json(value)
    else:
        console.say(text)
