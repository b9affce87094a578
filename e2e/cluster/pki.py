"""Certificates of a cluster: an authority made at its start, who gets one, and kubeconfigs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)
# Clocks of two machines never agree.
EARLIER = timedelta(hours=1)
SERVICE_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate names; `file` is the name of its files."""

    file: str
    common_name: str
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


ADMIN = Subject("admin", "admin", ("system:masters",))
CONTROLLER_MANAGER = Subject("controller-manager", "system:kube-controller-manager")
SCHEDULER = Subject("scheduler", "system:kube-scheduler")
PROXY = Subject("proxy", "system:kube-proxy")


def api_server(addresses: Sequence[str]) -> Subject:
    """The API server, reached by these addresses and by its service's names."""
    return Subject("apiserver", "kube-apiserver", addresses=tuple(dict.fromkeys(addresses)), names=SERVICE_NAMES)


def node(name: str, address: str) -> Subject:
    """A kubelet: the node authoriser knows it by group and name."""
    return Subject(name, f"system:node:{name}", ("system:nodes",), (address,), (name,))


def distinguished(subject: Subject) -> x509.Name:
    """Groups are organisations: that is how the API server reads them."""
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in subject.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)])


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
    """The certificate authority of one cluster. All its files are in `folder`, which only the owner may read.

    Args:
        identifiers: whether certificates have key identifiers, which Python 3.13 requires by default.
    """

    def __init__(self, folder: Path, now: datetime | None = None, identifiers: bool = True) -> None:
        self.folder = folder
        self._identifiers = identifiers
        self._now = now or datetime.now(UTC)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / "ca.key").exists():
            self._found()

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def _found(self) -> None:
        """Make the authority itself and the pair that signs service-account tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "e2e-ca")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._builder(name, name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if self._identifiers:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        signed = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._write("accounts.pub", public)
        self._write("accounts.key", private_bytes(accounts))
        self._write("ca.crt", signed.public_bytes(serialization.Encoding.PEM))
        self._write("ca.key", private_bytes(key))

    def issue(self, subject: Subject) -> tuple[Path, Path]:
        """The subject's certificate and key, made once; good for clients and servers alike."""
        paths = self.folder / f"{subject.file}.crt", self.folder / f"{subject.file}.key"
        if all(path.exists() for path in paths):
            return paths
        signer = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject
        key = ec.generate_private_key(ec.SECP256R1())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = self._builder(distinguished(subject), issuer, key.public_key()).add_extension(usages, critical=False)
        other: list[x509.GeneralName] = [x509.IPAddress(ip_address(address)) for address in subject.addresses]
        other += [x509.DNSName(name) for name in subject.names]
        if other:
            builder = builder.add_extension(x509.SubjectAlternativeName(other), critical=False)
        if self._identifiers:
            authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
            builder = builder.add_extension(authority, critical=False)
        self._write(paths[0].name, builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self._write(paths[1].name, private_bytes(key))
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

    def _builder(self, name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(self._now - EARLIER).not_valid_after(self._now + LIFETIME)

    def _write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return path


def private_bytes(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    """A private key as the API server reads both kinds: PEM, PKCS 1 or SEC 1."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
