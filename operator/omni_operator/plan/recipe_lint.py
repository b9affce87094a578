"""PURE: warnings about a job: of its recipe, as the trainer prints them, and of fields without effect."""

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
PATIENCE_UNUSED = (
    "cannot end the run: spec.trainer.evalEverySteps is 0, so samples are evaluated only before and after training; "
    "raise that, or remove this"
)


def find_unused(job: DiffusionRLJob) -> list[Violation]:
    """Fields that can have no effect because of others."""
    if job.spec.algorithm.entrypoint != ENTRYPOINT:
        return []
    unused = []
    if _has_unused_judge(job):
        unused.append(Violation(("spec", "reward", "model"), JUDGE_UNUSED))
    if job.spec.reward.early_stopping_patience is not None and job.spec.trainer.eval_every_steps == 0:
        unused.append(Violation(("spec", "reward", "earlyStoppingPatience"), PATIENCE_UNUSED))
    return unused


def _has_unused_judge(job: DiffusionRLJob) -> bool:
    """Whether a judge takes accelerators and is never asked; a function of the user's may ask it."""
    reward = job.spec.reward
    own_manager = any(text.lstrip("+").startswith("reward.reward_manager.") for text in job.spec.algorithm.overrides)
    if reward.model is None or own_manager:
        return False
    asking = (scorer.asks_judge and not scorer.settings.get("base_url") for scorer in reward.scorers)
    return not any(asking) and not any(scorer.function for scorer in reward.scorers)


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
