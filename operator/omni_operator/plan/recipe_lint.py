"""PURE: warnings about a job: of its recipe, as the trainer prints them, and of a judge that no scorer asks."""

from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import Violation
from omni_operator.api.overrides.override_names import parse_value
from omni_operator.api.spec.training import ENTRYPOINT
from verl_omni.settings_schema.declarations import FIELDS
from verl_omni.workers.algorithms import recipe_lint

from .overrides import render_overrides
from .run_layout import local_layout

JUDGE_UNUSED = (
    "is a judge that no scorer asks, and it takes accelerators: remove it, or add a scorer that asks a judge, such as "
    "genrm_ocr, without base_url"
)


def find_unused(job: DiffusionRLJob) -> list[Violation]:
    """A judge that takes accelerators and is never asked; a function of the user's may ask it."""
    reward = job.spec.reward
    algorithm = job.spec.algorithm
    own_manager = any(text.lstrip("+").startswith("reward.reward_manager.") for text in algorithm.overrides)
    if reward.model is None or own_manager or algorithm.entrypoint != ENTRYPOINT:
        return []
    if any(scorer.function or (scorer.asks_judge and not scorer.settings.get("base_url")) for scorer in reward.scorers):
        return []
    return [Violation(("spec", "reward", "model"), JUDGE_UNUSED)]


def find_risks(job: DiffusionRLJob) -> list[Violation]:
    """What published runs report as harmful; nothing for a trainer of the user's."""
    spec = job.spec
    if spec.algorithm.entrypoint != ENTRYPOINT:
        return []
    lines = (line.lstrip("+").partition("=") for line in render_overrides(job, local_layout(job, "runs")))
    settings: dict[str, Any] = {name: parse_value(value) for name, _, value in lines}
    settings[recipe_lint.FUNCTIONS] = {
        scorer.name: {"name": scorer.scorer, "weight": scorer.weight}
        for scorer in spec.reward.scorers
        if scorer.is_trained
    }
    return [_locate(risk) for risk in recipe_lint.find_risks(settings.get)]


def _locate(risk: recipe_lint.Risk) -> Violation:
    """The risk at its field of a job; what has no field is an override."""
    if field := FIELDS.get(risk.setting):
        return Violation(tuple(field.split(".")), risk.text)
    return Violation(("spec", "algorithm", "overrides"), f"{risk.setting} {risk.text}")
