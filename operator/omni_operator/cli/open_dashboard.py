"""`drl open`: forward a local port to the Ray dashboard of a job on a cluster."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from . import console
from .cluster_options import Context, Kubeconfig, Name, Namespace, cluster_client
from .options import Json


def open_dashboard(
    name: Name,
    port: Annotated[
        int, typer.Option("--port", help="Local port; 0: any free one.", metavar="N", min=0, max=65535)
    ] = 8265,
    as_json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Forward a local port to the Ray dashboard of a running job on a cluster, until Ctrl-C.

    Prints the URL, and where the token is that the dashboard asks for.
    """
    with cluster_client(namespace, context, kubeconfig) as client:
        from omni_operator.client.logs import find_pods
        from omni_operator.client.pods import find_dashboard
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
                made = {"url": forwarder.url, "secret": dashboard.secret, "key": dashboard.key}
                console.say(json.dumps(made))
            else:
                console.say(f"Ray dashboard of {name}: {forwarder.url}")
                console.say(dashboard.describe_token(client.namespace))
                console.say("Ctrl-C ends this")
            _wait()


def _wait() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return
