"""An admission webhook that alters objects of a namespace, as sidecar injectors and policy engines do."""

import base64
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from e2e.cluster import deadlines, pki
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane

ROOT = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
Body = dict[str, Any]
Patch = list[dict[str, Any]]


@dataclass
class AlteringWebhook:
    """The webhook.

    Attributes:
        alter: JSON patch of an object, from its request: resource, with its subresource after a slash, and object.
        denial: message with which it denies what is not a dry run, with code 403 as Gatekeeper; empty: nothing.
        called: requests by resource.
    """

    alter: Callable[[str, Body], Patch]
    denial: str = ""
    called: Counter[str] = field(default_factory=Counter)

    def review(self, body: Body) -> Body:
        """The answer to a review."""
        request = body["request"]
        resource = "/".join(filter(None, (request["resource"]["resource"], request.get("subResource"))))
        self.called[resource] += 1
        answer: Body = {"uid": request["uid"], "allowed": True}
        if self.denial and not request.get("dryRun"):
            answer |= {"allowed": False, "status": {"code": 403, "message": self.denial}}
        elif patch := self.alter(resource, request["object"]):
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


@contextmanager
def altering_webhook(
    plane: ControlPlane, api: Api, namespace: str, resources: list[str], alter: Callable[[str, Body], Patch]
) -> Iterator[AlteringWebhook]:
    """A webhook for what is created and changed of these resources in a namespace, in force until the end."""
    webhook = AlteringWebhook(alter)

    class Handler(BaseHTTPRequestHandler):
        """Answers reviews."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Answer one."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = json.dumps(webhook.review(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    subject = pki.Subject("webhook", "webhook", names=("127.0.0.1", "localhost"))
    trust.load_cert_chain(*plane.authority.issue(subject))
    server.socket = trust.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    name = f"alter-{namespace}"
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": resources}
    authority = base64.b64encode(plane.authority.certificate.read_bytes()).decode()
    api.post(
        ROOT,
        {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "alter.example.com",
                    "rules": [rule],
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "clientConfig": {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": authority},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "failurePolicy": "Ignore",
                    "timeoutSeconds": 5,
                }
            ],
        },
    )

    def is_called() -> bool:
        api.post(
            f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs?dryRun=All",
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayJob",
                "metadata": {"name": "probe"},
                "spec": {"entrypoint": "true"},
            },
        )
        return webhook.called["rayjobs"] > 0

    try:
        deadlines.wait_until("the webhook to be called", deadlines.API_READY, is_called)
        webhook.called.clear()
        yield webhook
    finally:
        api.delete(f"{ROOT}/{name}")
        server.shutdown()
        server.server_close()
        thread.join()
