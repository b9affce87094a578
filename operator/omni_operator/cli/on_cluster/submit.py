"""`drl submit`: create a job on a cluster, after the checks of `drl validate --cluster`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_operator.api import LoadedJob
from omni_operator.cli import console
from omni_operator.cli.options import Assignments, ClusterView, JobFile, Json, cluster_view

from .cluster_options import Context, Kubeconfig, Namespace, cluster_client
from .watch import watch_job

if TYPE_CHECKING:
    from omni_operator.client import Client, Submitted


def submit(
    file: JobFile,
    assignments: Assignments = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            help="File with the operator's settings (docs/reference/cli.md). Default: read from its Deployment.",
            metavar="FILE.yaml",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The API server checks the job and stores nothing.")
    ] = False,
    and_watch: Annotated[bool, typer.Option("--watch", help="Then follow the job, as drl watch does.")] = False,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Create a job on a cluster.

    Example: drl submit job.yaml --watch

    Checks it first, as drl validate --cluster does. The same job again changes nothing; another job of that name is
    refused.
    """
    if and_watch and dry_run:
        console.refuse("--watch has no effect with --dry-run, which creates no job")
    loaded = console.load_or_refuse(file, assignments or ())
    namespace_of_file = loaded.job.metadata.namespace or None
    if namespace_of_file and namespace is not None and namespace_of_file != namespace:
        console.refuse(
            f"{loaded.document.source}: metadata.namespace is {namespace_of_file}, and --namespace is {namespace}"
        )
    with cluster_client(namespace_of_file if namespace is None else namespace, context, kubeconfig) as client:
        _check(loaded, cluster_view(settings, None) if settings else _read_view(client))
        done = client.submit(loaded.document.plain(), dry_run=dry_run)
        if as_json:
            console.say(json.dumps({"created": done.created and not dry_run, "job": done.job.body}, ensure_ascii=False))
        else:
            console.say(_describe(done, client.namespace, dry_run=dry_run))
        if and_watch:
            watch_job(client, done.job.name, as_json=as_json)


def _read_view(client: Client) -> ClusterView:
    """The settings of the cluster's operator; the default ones if they cannot be read. Exits if it may be several."""
    from omni_operator.client.operator_settings import AmbiguousOperator, SettingsUnreadable, read_operator_settings

    try:
        return ClusterView(read_operator_settings(client.connection, client.namespace), placeholder=False)
    except SettingsUnreadable as error:
        console.note(f"checked without the operator's policy and image: {error}")
        return cluster_view(None, None)
    except AmbiguousOperator as error:
        console.refuse(
            f"{error}; give the operator's settings with --settings FILE.yaml (docs/reference/cli.md), "
            "or delete what is not the operator"
        )


def _check(loaded: LoadedJob, view: ClusterView) -> None:
    """Refuse what the operator would refuse; under an unknown policy, only announce what the default one refuses."""
    problems = list(view.problems(loaded))
    if view.placeholder:
        doubts = [problem for problem in problems if problem in {*view.policy_problems(loaded)}]
        problems = [problem for problem in problems if problem not in doubts]
        for doubt in doubts:
            console.note(f"refused unless the operator's policy allows it: {doubt}")
    if problems:
        console.refuse(console.format_problems(problems))
    for text in view.notes(loaded):
        console.note(text)


def _describe(done: Submitted, namespace: str, *, dry_run: bool) -> str:
    name = done.job.name
    state = done.job.status.state or "not seen by an operator"
    if not done.created:
        return f"{name} exists in namespace {namespace} with the same spec: {state}; nothing was created"
    return (
        f"{name} would be created in namespace {namespace}" if dry_run else f"{name} created in namespace {namespace}"
    )
