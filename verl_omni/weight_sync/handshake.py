"""PURE: proofs of both ends of a weight update that they have the Ray cluster's token, which is never sent."""

import hashlib
import hmac
import ipaddress

NONCE_BYTES = 32
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"


def token_key(token: str | None, host: str) -> bytes:
    """The key of the proofs.

    Args:
        token: value of `TOKEN_VARIABLE`; None or empty: not set.
        host: IP address that the trainer listens on.

    Raises:
        ValueError: there is no token, and other machines can reach the address.
    """
    if not token and not ipaddress.ip_address(host).is_loopback:
        raise ValueError(
            f"weights would be sent on {host} without authentication: {TOKEN_VARIABLE} is not set; start Ray with "
            f"RAY_AUTH_MODE=token and {TOKEN_VARIABLE} on all of its nodes"
        )
    return (token or "").encode()


def receiver_proof(key: bytes, update: bytes, receiver: int, challenge: bytes, nonce: bytes) -> bytes:
    """HMAC-SHA-256 with which a receiver answers the trainer's challenge for one update."""
    return _proof(key, b"receiver", update, receiver, challenge, nonce)


def sender_proof(key: bytes, update: bytes, receiver: int, challenge: bytes, nonce: bytes) -> bytes:
    """HMAC-SHA-256 with which the trainer answers the receiver's nonce."""
    return _proof(key, b"sender", update, receiver, challenge, nonce)


def same_proof(expected: bytes, found: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(expected, found)


def _proof(key: bytes, end: bytes, update: bytes, receiver: int, challenge: bytes, nonce: bytes) -> bytes:
    # Each part with its length, so that no two inputs are the same bytes.
    parts = (end, update, str(receiver).encode(), challenge, nonce)
    return hmac.digest(key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), hashlib.sha256)
