"""PURE: digests by which a change of what was rendered is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

LENGTH = 32  # of hexadecimal digits: half of SHA-256, which also fits into a label


def compute_digest(body: Mapping[str, Any]) -> str:
    """Digest of an object, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:LENGTH]
