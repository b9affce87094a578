"""How the operator proves who it is: the pod's service account, or a kubeconfig."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCredentials(RuntimeError):
    """There is neither a service account nor a usable kubeconfig."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and how to speak to it.

    Attributes:
        token: read for every request, because kubelets replace it; None with client certificates.
        namespace: the operator's own.
    """

    server: str
    tls: ssl.SSLContext | None
    token: Callable[[], str] | None
    namespace: str

    async def headers(self) -> dict[str, str]:
        """Headers of a request."""
        if self.token is None:
            return {}
        return {"Authorization": f"Bearer {await asyncio.to_thread(self.token)}"}


def find(environ: Mapping[str, str]) -> Access:
    """The service account where the program runs in a pod, else the kubeconfig that KUBECONFIG names.

    Raises:
        NoCredentials: there is neither.
    """
    if environ.get("KUBECONFIG"):
        return from_kubeconfig(Path(environ["KUBECONFIG"].split(os.pathsep)[0]))
    if (ACCOUNT / "token").exists():
        return Access(
            in_pod_server(environ),
            ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")),
            (ACCOUNT / "token").read_text,
            (ACCOUNT / "namespace").read_text().strip(),
        )
    default = Path.home() / ".kube" / "config"
    if default.exists():
        return from_kubeconfig(default)
    raise NoCredentials("no service account in this pod, no KUBECONFIG, no ~/.kube/config")


def in_pod_server(environ: Mapping[str, str]) -> str:
    """The API server's address in a pod, by number: it answers where the cluster's name service does not."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig: certificates or a token; programs that make credentials are not run.

    Raises:
        NoCredentials: the file says nothing that can be used.
    """
    try:
        config = YAML(typ="safe").load(path.read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        server = str(cluster["server"])
    except (OSError, KeyError, TypeError, StopIteration) as error:
        raise NoCredentials(f"{path}: no usable current context: {error!r}") from error
    token, file = user.get("token"), user.get("tokenFile")
    read = Path(file).read_text if file else (lambda: str(token)) if token else None
    return Access(server, _tls(path, cluster, user), read, str(context.get("namespace") or "default"))


def _named(config: Any, kind: str, name: str) -> Any:
    return next(item for item in config[kind] if item["name"] == name)


def _tls(path: Path, cluster: Any, user: Any) -> ssl.SSLContext | None:
    if not str(cluster["server"]).startswith("https"):
        return None
    context = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif data := cluster.get("certificate-authority-data"):
        context.load_verify_locations(cadata=base64.b64decode(data).decode())
    elif file := cluster.get("certificate-authority"):
        context.load_verify_locations(cafile=str(path.parent / file))
    if data := user.get("client-certificate-data"):
        # The ssl module loads certificates from files alone.
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "crt"), Path(folder, "key")
            certificate.write_bytes(base64.b64decode(data))
            key.touch(mode=0o600)
            key.write_bytes(base64.b64decode(user["client-key-data"]))
            context.load_cert_chain(certificate, key)
    elif file := user.get("client-certificate"):
        context.load_cert_chain(path.parent / file, path.parent / user["client-key"])
    return context
