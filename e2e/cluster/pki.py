"""Certificates of a cluster: an authority made at its start, who gets one, and kubeconfigs."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

SERVICE_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate names. `file` is the name of its files, and a server is reached by `names` and addresses."""

    file: str
    common_name: str
    group: str | None = None  # the API server reads it from the organisation
    names: tuple[str, ...] = ()


ADMIN = Subject("admin", "admin", "system:masters")
ACCOUNTS = Subject("accounts", "accounts")  # its key signs tokens of service accounts
CONTROLLER_MANAGER = Subject("controller-manager", "system:kube-controller-manager")
SCHEDULER = Subject("scheduler", "system:kube-scheduler")
PROXY = Subject("proxy", "system:kube-proxy")


def api_server(addresses: Sequence[str]) -> Subject:
    """The API server, reached by these addresses and by its service's names."""
    return Subject("apiserver", "kube-apiserver", names=(*dict.fromkeys(addresses), *SERVICE_NAMES))


def node(name: str, address: str) -> Subject:
    """A kubelet: the node authoriser knows it by group and name."""
    return Subject(name, f"system:node:{name}", "system:nodes", (address, name))


def encoded(data: bytes) -> str:
    """Bytes as a kubeconfig holds them."""
    return base64.b64encode(data).decode()


def kubeconfig(server: str, authority: bytes, user: dict[str, str]) -> dict[str, Any]:
    """A kubeconfig that needs no other file. Written as JSON, which is YAML too."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e", "namespace": "default"}}],
    }


class Authority:
    """The certificate authority of one cluster. All its files are in `folder`, which only the owner may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / "ca.key").exists():
            authority = trustme.CA()
            self._write("ca.crt", authority.cert_pem.bytes())
            self._write("ca.key", authority.private_key_pem.bytes())

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, subject: Subject) -> tuple[Path, Path]:
        """The subject's certificate and key, made once; good for clients and servers alike."""
        paths = self.folder / f"{subject.file}.crt", self.folder / f"{subject.file}.key"
        if all(path.exists() for path in paths):
            return paths
        authority = trustme.CA.from_pem(self.certificate.read_bytes(), (self.folder / "ca.key").read_bytes())
        issued = authority.issue_cert(
            *(subject.names or ("localhost",)), common_name=subject.common_name, organization_name=subject.group
        )
        self._write(paths[0].name, issued.cert_chain_pems[0].bytes())
        self._write(paths[1].name, issued.private_key_pem.bytes())
        return paths

    def kubeconfig(self, subject: Subject, server: str) -> Path:
        """A kubeconfig with which the subject speaks to `server`."""
        certificate, key = self.issue(subject)
        user = {
            "client-certificate-data": encoded(certificate.read_bytes()),
            "client-key-data": encoded(key.read_bytes()),
        }
        return self._write_kubeconfig(subject.file, server, user)

    def kubeconfig_with_token(self, name: str, token: str, server: str) -> Path:
        """A kubeconfig of whomever the token names."""
        return self._write_kubeconfig(name, server, {"token": token})

    def _write_kubeconfig(self, name: str, server: str, user: dict[str, str]) -> Path:
        content = kubeconfig(server, self.certificate.read_bytes(), user)
        return self._write(f"{name}.kubeconfig", json.dumps(content, indent=2).encode())

    def _write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return path
