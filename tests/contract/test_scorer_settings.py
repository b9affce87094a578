"""The settings that a job may give a built-in scorer are the scorer's own arguments, with the same defaults."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from omegaconf import OmegaConf

from omni_operator import plan
from omni_operator.api import read_job
from omni_operator.api.spec.reward import BUILTIN, Http
from omni_operator.api.spec.scorers import UNAVAILABLE

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"
SAMPLE_ARGUMENTS = ["data_source", "solution_image", "ground_truth", "extra_info"]
LISTS = ["data_sources", "solution_images", "ground_truths", "extra_infos"]


def settings_of(scorer: str) -> dict[str, Any]:
    from verl_omni.reward_loop.rewards import get_scorer
    from verl_omni.reward_loop.scorer_signature import FILLED_IN

    parameters = list(inspect.signature(get_scorer(scorer)).parameters.values())
    assert [parameter.name for parameter in parameters[:4]] in (SAMPLE_ARGUMENTS, LISTS)
    return {each.name: each.default for each in parameters[4:] if each.name not in FILLED_IN}


@pytest.mark.parametrize("scorer", BUILTIN)
def test_a_job_knows_every_setting_of_a_scorer_and_its_default(scorer: str) -> None:
    fields = BUILTIN[scorer].model_fields
    arguments = settings_of(scorer)
    assert fields.keys() == arguments.keys()
    for name, info in fields.items():
        if info.is_required():  # a judge's base_url and model may also come from verl's reward router
            assert arguments[name] in (None, inspect.Parameter.empty), name
        else:
            assert info.default == arguments[name], name


def test_the_scorers_of_the_reference_that_are_missing_are_refused_for_the_same_reasons() -> None:
    from verl_omni.reward_loop.rewards import SCORERS
    from verl_omni.reward_loop.rewards import UNAVAILABLE as MISSING

    assert UNAVAILABLE == MISSING
    assert not UNAVAILABLE.keys() & {*BUILTIN, *SCORERS}


def test_the_published_modules_of_scorers_are_the_same_for_a_command_line_and_a_converted_job() -> None:
    from omni_operator.recipes import reference_scorers as converted
    from verl_omni.trainer.settings import reference_modules as trained

    assert converted.PUBLISHED == trained.PUBLISHED
    implied = {name: given for name, given in trained.IMPLIED.items() if name != "http"}
    assert implied == converted.SCORER_SETTINGS
    assert {"hpsv3": trained.SETTINGS["hpsv3"]} == converted.RENAMED


@pytest.mark.parametrize("name", ["http", "http_batch"])
def test_the_fields_of_a_reward_server_are_the_settings_of_its_scorers(name: str) -> None:
    fields = {name.removesuffix("_seconds"): info for name, info in Http.model_fields.items() if name != "batched"}
    scorer = settings_of(name)
    assert fields.keys() == scorer.keys()
    defaults = {name: info.default for name, info in fields.items() if name != "url"}
    defaults["protocol"] = defaults["protocol"].lower()  # values of the job's API are in PascalCase
    assert defaults == {name: default for name, default in scorer.items() if name != "url"}


def test_the_colors_of_a_job_are_those_of_the_scorer() -> None:
    from verl_omni.reward_loop.rewards.color import CHANNELS

    assert get_args(BUILTIN["color"].model_fields["color"].annotation) == tuple(CHANNELS)


@pytest.mark.parametrize("quality", [1, 100])
def test_the_encoder_takes_both_ends_of_the_range_of_jpeg_quality(quality: int) -> None:
    import torch

    from verl_omni.reward_loop.rewards import get_scorer

    BUILTIN["jpeg"].model_validate({"quality": quality})
    noise = torch.randint(0, 256, (3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    score = get_scorer("jpeg")
    sizes = [score("d", noise, "", {}, quality=value) for value in (quality, 50)]
    assert (sizes[0] > sizes[1]) is (quality < 50)


@pytest.mark.parametrize("required", [True, False])
def test_the_question_of_a_judge_reaches_the_trainer_as_it_was_written(required: bool) -> None:
    from verl_omni.trainer.settings import configuration, reward_settings

    given = {
        "base_url": "https://judge:8000/v1",
        "model": "owner/name-7B",
        "lowest": -1.5,
        "template": "Rate {prompt}, \"as is\": it's 'fine' = [1, 2], ${x} \\ {highest}.",
    }
    scorer = {"name": "unified_reward", "settings": given, "required": required}
    text = EXAMPLE.read_text(encoding="utf-8")
    job = plan.resolve_paths(
        read_job(text, "job.yaml", [f"spec.reward.scorers={json.dumps([scorer])}"]).job, "/examples"
    )
    reward = configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs"))).reward
    own = reward.scorer_kwargs if required else reward.reward_functions.unified_reward
    assert OmegaConf.to_container(own, resolve=True).items() >= given.items()
    assert reward_settings.find_problems(reward) == []
