"""PURE: a job -> the terms that decisions rest on."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from omni_operator.api.job import DiffusionRLJob
from omni_operator.cluster.labels import FINALIZER
from omni_operator.status.reasons import Action
from omni_operator.status.terms import Rule, Terms
from omni_operator.status.times import moment

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def bare_terms(body: dict[str, Any]) -> Terms:
    """What is known of a job whose spec cannot be read."""
    meta = body["metadata"]
    return Terms(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta["name"]),
        uid=str(meta.get("uid") or ""),
        generation=int(meta.get("generation") or 0),
        created=moment(meta.get("creationTimestamp")) or _EPOCH,
        deleting=moment(meta.get("deletionTimestamp")),
        held=FINALIZER in (meta.get("finalizers") or ()),
    )
