"""PURE: what rollout and reward pods are made of that a job may change while they run."""

from typing import TypeVar

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.api.spec.judge import JudgeModel
from omni_operator.api.spec.rollout import Rollout

from .digest import compute_digest

Source = TypeVar("Source", Rollout, JudgeModel)
OF_PODS = ("resources", "shared_memory", "scheduling", "pod_template")
# Fields of spec.rollout and spec.reward.model, by worker group, that reach its pods alone, and nothing that the trainer
# read at its start.
ROLLED = {ROLLOUT_GROUP: (*OF_PODS, "drain_seconds"), REWARD_GROUP: OF_PODS}


def digest_rolled(group: str, source: Rollout | JudgeModel) -> str:
    """Digest of the fields in `ROLLED`, the value of a label of the group's pods.

    It is one of the spec, not of the rendered pods, so a new version of the operator replaces no pods.
    """
    rolled = set(ROLLED[group])
    return compute_digest(source.model_dump(mode="json", by_alias=True, include=rolled, exclude_defaults=True))


def without_rolled(group: str, source: Source) -> Source:
    """The source with the defaults of these fields."""
    return source.model_copy(update=dict.fromkeys(ROLLED[group]))
