"""PURE: warnings about the recipe of a job, as the trainer prints them."""

from __future__ import annotations

from typing import Any

from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import FieldPath, Violation
from omni_operator.api.overrides.override_names import parse_value
from omni_operator.api.spec.scorers import asks_judge
from omni_operator.api.spec.training import ENTRYPOINT
from verl_omni.workers.algorithms import recipe_lint

from .overrides import render_overrides
from .run_layout import local_layout

_FIELDS: dict[str, FieldPath] = {
    recipe_lint.SAMPLES: ("rollout", "samplesPerPrompt"),
    recipe_lint.PROMPTS: ("trainer", "batch", "prompts"),
    recipe_lint.STEPS: ("rollout", "pipeline", "steps"),
    recipe_lint.RATE: ("trainer", "learningRate"),
    recipe_lint.MODEL: ("model", "base"),
}
_OVERRIDES: FieldPath = ("algorithm", "overrides")


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
    judges = frozenset(scorer.scorer for scorer in spec.reward.scorers if asks_judge(scorer.scorer))
    found = recipe_lint.find_risks(settings.get, judges)
    return [_locate(risk) for risk in found]


def _locate(risk: recipe_lint.Risk) -> Violation:
    """The risk at its field of a job; what has no field is an override."""
    if risk.setting in _FIELDS:
        return Violation(("spec", *_FIELDS[risk.setting]), risk.text)
    return Violation(("spec", *_OVERRIDES), f"{risk.setting} {risk.text}")
