"""PURE: what rollout pods are made of that a job may change while they run."""

from __future__ import annotations

from omni_operator.api.rollout import Rollout

from .digest import compute_digest

# Fields of spec.rollout that reach rollout pods alone, and nothing that the trainer read at its start.
ROLLED = ("resources", "shared_memory", "scheduling", "pod_template", "drain_seconds")


def digest_rolled(rollout: Rollout) -> str:
    """Digest of the fields in `ROLLED`, the value of a label of rollout pods.

    It is one of the spec, not of the rendered pods, so a new version of the operator replaces no pods.
    """
    return compute_digest(rollout.model_dump(mode="json", by_alias=True, include=set(ROLLED), exclude_defaults=True))


def without_rolled(rollout: Rollout) -> Rollout:
    """The rollout with the defaults of these fields."""
    return rollout.model_copy(update=dict.fromkeys(ROLLED))
