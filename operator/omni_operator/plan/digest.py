"""PURE: digests that detect changes of rendered objects."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from omni_operator.api.names import PODS_ANNOTATION, RENDERED_ANNOTATION, SPEC_ANNOTATION

CHECKED = (RENDERED_ANNOTATION, SPEC_ANNOTATION, PODS_ANNOTATION)
LENGTH = 32  # hexadecimal digits: half of SHA-256, which also fits into a label


def compute_digest(body: Mapping[str, Any]) -> str:
    """Digest of an object, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:LENGTH]


def digest_checked(rayjob: Mapping[str, Any]) -> str:
    """Digest of a RayJob's entrypoint and of the annotations that the operator reads, by which an edit is noticed."""
    annotations = rayjob["metadata"].get("annotations") or {}
    entrypoint = (rayjob.get("spec") or {}).get("entrypoint")
    return compute_digest({"entrypoint": entrypoint, **{name: annotations.get(name) for name in CHECKED}})
