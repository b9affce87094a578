"""Certificates without key identifiers, as older tools issue them; Python 3.13 refuses them by default."""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.cluster.pki import Authority

IDENTIFIERS = (x509.SubjectKeyIdentifier.oid, x509.AuthorityKeyIdentifier.oid)


def remove_identifiers(authority: Authority, *paths: Path) -> None:
    """Sign certificates of the authority again, without key identifiers. It can issue no others afterwards."""
    signer = serialization.load_pem_private_key((authority.folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    for path in (authority.certificate, *paths):
        old = x509.load_pem_x509_certificate(path.read_bytes())
        kept = [extension for extension in old.extensions if extension.oid not in IDENTIFIERS]
        builder = x509.CertificateBuilder(
            old.issuer,
            old.subject,
            old.public_key(),
            old.serial_number,
            old.not_valid_before_utc,
            old.not_valid_after_utc,
            kept,
        )
        path.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
