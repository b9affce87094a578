"""`drl open`: the Ray dashboard of a job on a cluster by a local port, or its report in the browser."""

import json
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli import console
from omni_operator.cli.local.run_folder import REPORT
from omni_operator.cli.options import Json

from .cluster_options import Context, Kubeconfig, Name, Namespace, cluster_client


def open_dashboard(
    called: typer.Context,
    name: Name,
    port: Annotated[
        int, typer.Option("--port", help="Local port; 0: any free one.", metavar="N", min=0, max=65535)
    ] = 8265,
    report: Annotated[
        bool, typer.Option("--report", help="Copy report.html to runs/NAME and open it in the browser instead.")
    ] = False,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Open the Ray dashboard, or the report, of a job on a cluster.

    Example: drl open my-job --report

    Forwards a local port to the dashboard of a running job until Ctrl-C. Prints the URL, and where the token is
    that the dashboard asks for. With --report it opens the report instead, also after the end of the job.
    """
    if report:
        console.refuse_given(called, ["port"], "with --report")
        _open_report(name, as_json, namespace, context, kubeconfig)
        return
    with cluster_client(namespace, context, kubeconfig) as client:
        from omni_operator.client.job_pods import find_dashboard
        from omni_operator.client.pod_logs import find_pods
        from omni_operator.client.port_forward import PortForwarder

        job = client.get(name)
        dashboard = find_dashboard(find_pods(client, job))
        if dashboard is None:
            state = job.status.state or "not seen by an operator"
            console.refuse(f"{name} is {state} and has no ready head pod; run drl why {name}", console.FAILED)
        try:
            forwarder = PortForwarder(
                client.connection, client.namespace, dashboard.pod, dashboard.port, port, console.note
            )
        except OSError as error:
            console.refuse(f"local port {port}: {error.strerror}; use --port N, or --port 0 for any free one")
        with forwarder:
            if as_json:
                answer = {"url": forwarder.url, "secret": dashboard.secret, "key": dashboard.key}
                console.say(json.dumps(answer))
            else:
                console.say(f"Ray dashboard of {name}: {forwarder.url}")
                console.say(dashboard.describe_token(client.namespace))
                console.say("Ctrl-C ends this")
            _wait()


def _open_report(name: str, as_json: bool, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Copy the report, print its path, and open it where there is a browser."""
    with cluster_client(namespace, context, kubeconfig) as client:
        from omni_operator.client.archive import FolderTaken
        from omni_operator.client.fetched_results import fetch

        folder = Path("runs", name)
        try:
            fetch(client, client.get(name), folder, only=REPORT, note=console.note)
        except FolderTaken as error:
            console.refuse(f"{error}; move it, or copy the report with drl fetch {name} --to DIR")
        except OSError as error:
            console.refuse(f"cannot write: {error}", console.FAILED)
    path = (folder / REPORT).absolute()
    console.say(json.dumps({"report": str(path)}) if as_json else f"report: {path}")
    if not as_json:
        webbrowser.open(path.as_uri())


def _wait() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return
