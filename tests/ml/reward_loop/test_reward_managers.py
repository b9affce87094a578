"""The managers that verl's reward workers load, without Ray."""

import asyncio
import copy
import logging
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.reward_score import get_default_compute_score

from tests.ml.reward_loop.managers import Sample, Settings, multi, visual
from verl_omni.reward_loop.scorer_results import FAILURE, ScorerFailed

DARK = pytest.approx(0.2)  # the fixture's image
NOTHING = pytest.approx(0, abs=1e-6)


@pytest.fixture
def user_file(tmp_path: Path) -> Callable[[str], str]:
    def made(text: str) -> str:
        path = tmp_path / "scorer.py"
        path.write_text(text)
        return str(path)

    return made


async def test_without_a_function_the_data_source_names_the_scorer(settings: Settings, sample: Sample) -> None:
    for row in (sample(), sample(extra_info=None)):
        result = await visual(settings()).run_single(row)
        assert result == {"reward_score": DARK, "reward_extra_info": {"acc": DARK}}


async def test_the_references_section_has_no_settings_of_scorers(settings: Settings, sample: Sample) -> None:
    config = settings()
    del config.reward["scorer_kwargs"]
    assert (await visual(config).run_single(sample()))["reward_score"] == DARK
    config.reward.scorer = "color"
    assert (await visual(config).run_single(sample()))["reward_score"] == NOTHING


async def test_a_file_of_several_functions_is_run_once(
    settings: Settings, sample: Sample, user_file: Callable[[str], str]
) -> None:
    arguments = "(data_source, solution_image, ground_truth, extra_info)"
    path = user_file(
        "import sys\nsys.runs_of_the_test = getattr(sys, 'runs_of_the_test', 0) + 1\n"
        f"def one{arguments}: return 1.0\ndef two{arguments}: return 2.0\n"
    )
    parts = {name: {"path": path, "name": name} for name in ("one", "two")}
    result = await multi(settings(reward_functions=parts)).run_single(sample())
    assert result["reward_score"] == 1.5 and sys.__dict__.pop("runs_of_the_test") == 1


async def test_a_named_scorer_wins_over_the_data_source(settings: Settings, sample: Sample) -> None:
    manager = visual(settings(scorer="color", scorer_kwargs={"color": "green"}))
    assert (await manager.run_single(sample()))["reward_score"] == NOTHING
    with pytest.raises(ScorerFailed, match="scorer web failed: ValueError: Unknown scorer 'web'"):
        await visual(settings()).run_single(sample(data_source="web"))


@pytest.mark.parametrize("wrapped", [False, True])
async def test_verls_scorer_of_texts_is_ignored(settings: Settings, sample: Sample, wrapped: bool) -> None:
    texts = get_default_compute_score("naive")
    scorer = partial(texts, sandbox_fusion_url="http://nowhere") if wrapped else texts
    assert (await visual(settings(), scorer).run_single(sample()))["reward_score"] == DARK


async def test_a_function_given_in_python_scores_and_needs_no_other_settings(
    settings: Settings, sample: Sample
) -> None:
    """As in a program of one's own: `VisualRewardManager(config, tokenizer, function)`."""

    def judge(solution_image: Any) -> float:
        return float(solution_image.shape[0])

    for config in (settings(scorer="brightness"), OmegaConf.create({"reward": {}})):
        assert (await visual(config, judge).run_single(sample()))["reward_score"] == 3


def with_custom_function(settings: Settings, path: str) -> Any:
    """The manager as verl loads it for the function `judge` of a user's file."""
    config = settings(
        custom_reward_function={"path": path, "name": "judge", "reward_kwargs": {"bonus": 2}},
        reward_manager={
            "source": "importlib",
            "name": "VisualRewardManager",
            "module": {"path": "pkg://verl_omni.reward_loop.reward_manager"},
        },
    )
    return load_reward_manager(config, None, reward_router_address="router:1", reward_model_tokenizer=None)


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_users_function_as_verl_loads_it(
    settings: Settings, sample: Sample, user_file: Callable[[str], str], kind: str
) -> None:
    """verl wraps it in a partial, behind which the arguments that it names must still be found."""
    path = user_file(
        f"{kind} judge(data_source, solution_image, ground_truth, extra_info, reward_router_address, bonus):\n"
        "    return {'score': bonus, 'router': reward_router_address, 'index': extra_info['index']}\n"
    )
    manager = with_custom_function(settings, path)
    result = await manager.run_single(sample())
    assert result == {"reward_score": 2.0, "reward_extra_info": {"router": "router:1", "index": 7}}


@pytest.mark.parametrize("way", ["custom", "python", "several"])
async def test_a_users_function_may_take_lists(
    settings: Settings, sample: Sample, user_file: Callable[[str], str], way: str
) -> None:
    path = user_file(
        "SIZES = []\n"
        "def judge(data_sources, solution_images, ground_truths, extra_infos, reward_router_address, bonus):\n"
        "    SIZES.append(len(solution_images))\n"
        "    return [{'score': bonus * info['index'], 'calls': len(SIZES)} for info in extra_infos]\n"
    )
    named = {
        "python": {"function": f"{path}:judge", "bonus": 2},
        "several": {"path": path, "name": "judge", "bonus": 2},
    }
    if way == "custom":
        manager = with_custom_function(settings, path)
    elif way == "python":
        manager = visual(settings(scorer="python", scorer_kwargs=named["python"]))
    else:
        manager = multi(settings(reward_functions={"mine": named["several"]}))
    rows = [manager.run_single(sample(extra_info={"index": index}, data_source=f"{index}")) for index in range(9)]
    results = await asyncio.gather(*rows)
    assert [result["reward_score"] for result in results] == [2.0 * index for index in range(9)]
    calls = "reward/mine/calls" if way == "several" else "calls"
    assert results[-1]["reward_extra_info"][calls] == 2, "the first sample alone, then all that waited"


async def test_a_scorer_gets_what_the_agent_loop_added_and_does_not_change_the_row(
    settings: Settings, sample: Sample
) -> None:
    seen: list[dict[str, Any]] = []

    async def judge(extra_info: dict[str, Any]) -> float:
        seen.append(dict(extra_info))
        extra_info["index"] = "changed"
        return 0.0

    row_info = {"index": 7}
    before = copy.deepcopy(row_info)
    of_loop = {"tool_extra_fields": {"seed": 3}, "__num_turns__": 2, "reward_scores": {"tool": 0.5}}
    data = sample(extra_info=row_info, **of_loop)
    await visual(settings(custom_reward_function={"path": "mine.py", "name": "x"}), judge).run_single(data)
    assert seen == [{"index": 7, "seed": 3, "num_turns": 2, "rollout_reward_scores": {"tool": 0.5}}]
    assert row_info == before


@pytest.mark.parametrize(
    ("wanted", "dtype", "message"),
    [
        ("image", torch.float32, "Expected uint8 pixel responses for output_type='image', got torch.float32."),
        ("latent", torch.uint8, "Expected floating-point latent responses, got torch.uint8."),
    ],
)
async def test_a_wrong_dtype_is_refused(
    settings: Settings, sample: Sample, wanted: str, dtype: torch.dtype, message: str
) -> None:
    response = torch.zeros(3, 8, 8, dtype=dtype)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        await visual(settings(output_type=wanted)).run_single(sample(response))
    assert str(caught.value) == message
    opposite = {"image": "latent", "latent": "image"}[wanted]
    validating = visual(settings(output_type=opposite, val_pipeline={"output_type": wanted}))
    with pytest.raises(ValueError, match=message.split(",", maxsplit=1)[0]):
        await validating.run_single(sample(response, validate=True))
    await validating.run_single(sample(response, validate=False))  # training has its own output type


async def test_float_pixels_score_as_the_same_bytes_do(settings: Settings, sample: Sample) -> None:
    response = torch.full((3, 8, 8), 51 / 255)
    assert (await visual(settings(pixel_dtype="float32")).run_single(sample(response)))["reward_score"] == DARK
    with pytest.raises(ValueError, match=r"Expected float32 pixel responses .* got torch.uint8"):
        await visual(settings(pixel_dtype="float32")).run_single(sample())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(2)\n", r"ValueError: .*scorer.py calls sys.exit\(2\) when it is imported"),
        ("import not_installed\n", "ModuleNotFoundError: No module named 'not_installed'"),
    ],
)
async def test_a_file_that_cannot_be_imported_is_named_and_ends_no_process(
    settings: Settings, sample: Sample, user_file: Callable[[str], str], text: str, message: str
) -> None:
    function = f"{user_file(text)}:judge"
    manager = visual(settings(scorer="python", scorer_kwargs={"function": function}))
    with pytest.raises(ScorerFailed, match=f"scorer {re.escape(function)} failed: {message}"):
        await manager.run_single(sample())


async def test_two_samples_at_once_are_refused(settings: Settings, sample: Sample) -> None:
    with pytest.raises(ValueError, match="one sample at a time, and got 2"):
        await visual(settings()).run_single(DataProto.concat([sample(), sample()]))


@pytest.mark.parametrize(
    ("chosen", "combined"),
    [({}, 0.15), ({"aggregation": "weighted_sum"}, 0.6), ({"aggregation": "normalized_sum"}, 0.15)],
)
async def test_several_scorers_are_averaged_or_added_by_weight(
    settings: Settings, sample: Sample, chosen: dict[str, str], combined: float
) -> None:
    functions = {"brightness": {"weight": 3}, "greenness": {"name": "color", "color": "green"}}
    result = await multi(settings(reward_functions=functions, **chosen)).run_single(sample())
    assert result["reward_score"] == pytest.approx(combined)
    assert result["reward_extra_info"] == {
        "reward/brightness": DARK,
        "reward/greenness": NOTHING,
        "reward/combined": pytest.approx(combined),
    }


PINK = "reward 'hue' failed: ValueError: Unknown color 'pink'"


@pytest.mark.parametrize("aggregation", ["weighted_mean", "weighted_sum", "normalized_sum"])
@pytest.mark.parametrize("required", [True, False])
async def test_a_sample_that_a_part_fails_for_has_no_reward(
    settings: Settings, sample: Sample, caplog: pytest.LogCaptureFixture, required: bool, aggregation: str
) -> None:
    """Neither 0, the best of a group of negative scores, nor the mean of the other parts, which is another scale."""
    functions = {"bright": {"name": "brightness"}, "hue": {"name": "color", "color": "pink", "required": required}}
    with caplog.at_level(logging.WARNING):
        result = await multi(settings(reward_functions=functions, aggregation=aggregation)).run_single(sample())
    assert math.isnan(result["reward_score"])
    assert result["reward_extra_info"] == {"reward/bright": DARK}
    assert result[FAILURE].text.startswith(PINK) and result[FAILURE].required is required
    assert not result[FAILURE].has_reward
    assert [record.getMessage() for record in caplog.records] == ["reward 'hue' failed; a sample has no score of it"]


async def test_a_part_without_weight_may_fail_and_is_counted(settings: Settings, sample: Sample) -> None:
    functions = {"bright": {"name": "brightness"}, "hue": {"name": "color", "color": "pink", "weight": 0}}
    result = await multi(settings(reward_functions=functions)).run_single(sample())
    assert result["reward_score"] == DARK
    assert result["reward_extra_info"] == {"reward/bright": DARK, "reward/combined": DARK}
    assert result[FAILURE].text.startswith(PINK) and result[FAILURE].required and result[FAILURE].has_reward


async def test_a_part_of_evaluations_scores_only_their_samples_and_never_fails_one(
    settings: Settings, sample: Sample
) -> None:
    functions = {
        "bright": {"name": "brightness"},
        "green": {"name": "color", "color": "green", "use": "evaluation"},
        "hue": {"name": "color", "color": "pink", "use": "evaluation"},
    }
    manager = multi(settings(reward_functions=functions))
    trained = await manager.run_single(sample())
    assert trained["reward_extra_info"] == {"reward/bright": DARK, "reward/combined": DARK} and FAILURE not in trained
    evaluated = await manager.run_single(sample(validate=True))
    scores = {"reward/bright": DARK, "reward/green": NOTHING, "reward/combined": DARK}
    assert evaluated["reward_score"] == DARK and evaluated["reward_extra_info"] == scores
    assert evaluated[FAILURE].text.startswith(PINK) and not evaluated[FAILURE].required
    assert evaluated[FAILURE].has_reward


async def test_a_function_that_changes_its_sample_changes_no_other_part(
    settings: Settings, sample: Sample, user_file: Callable[[str], str]
) -> None:
    path = user_file(
        "def whiten(solution_image, extra_info):\n"
        "    solution_image[:] = 255\n"
        "    extra_info['index'] = 0\n"
        "    return 0\n"
        "def index(extra_info):\n    return extra_info['index']\n"
    )
    functions = {name: {"path": path, "name": name} for name in ("whiten", "index")}
    manager = multi(settings(reward_functions={**functions, "bright": {"name": "brightness"}}))
    scored = (await manager.run_single(sample()))["reward_extra_info"]
    assert (scored["reward/index"], scored["reward/bright"]) == (7, DARK)


@pytest.mark.parametrize("way", ["python", "several"])
async def test_settings_that_are_lists_are_lists(
    settings: Settings, sample: Sample, user_file: Callable[[str], str], way: str
) -> None:
    path = user_file(
        "def judge(solution_image, colors):\n    return float(type(colors) is list and colors == ['red'])\n"
    )
    manager = (
        multi(settings(reward_functions={"mine": {"path": path, "name": "judge", "colors": ["red"]}}))
        if way == "several"
        else visual(settings(scorer="python", scorer_kwargs={"function": f"{path}:judge", "colors": ["red"]}))
    )
    assert (await manager.run_single(sample()))["reward_score"] == 1


async def test_of_several_failures_the_first_required_one_counts(settings: Settings, sample: Sample) -> None:
    functions = {
        "first": {"name": "color", "color": "grey", "required": False},
        "hue": {"name": "color", "color": "pink"},
    }
    result = await multi(settings(reward_functions=functions)).run_single(sample())
    assert result[FAILURE].text.startswith(PINK) and result[FAILURE].required


def test_a_setting_that_no_scorer_takes_is_refused(settings: Settings) -> None:
    nearest = "colour: unknown setting; did you mean color?"
    with pytest.raises(ValueError, match=f"reward.reward_functions.red.{re.escape(nearest)}"):
        multi(settings(reward_functions={"red": {"name": "color", "colour": "red"}}))
    with pytest.raises(ValueError, match=f"reward.scorer_kwargs.{re.escape(nearest)}"):
        visual(settings(scorer="color", scorer_kwargs={"colour": "red"}))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({}, "reward.reward_functions must be non-empty"),
        (None, "reward.reward_functions must be non-empty"),
        ({"brightness": {"weight": 0}}, "more than 0, not 0"),
        ({"brightness": {"weight": 1}, "jpeg": {"weight": -2}}, "more than 0, not -1"),
        ({"sharpness": {}}, "Unknown scorer 'sharpness'"),
        ({"jpeg": None}, r"reward\.reward_functions\.jpeg: must be a group of settings, such as .*, not null"),
        ({"jpeg": "small"}, r"reward\.reward_functions\.jpeg: must be a group of settings, such as .*, not small"),
        ({"jpeg": {"weight": "x"}}, r"reward\.reward_functions\.jpeg\.weight: must be a finite number, not x"),
        ({"jpeg": {"weight": math.nan}}, r"reward\.reward_functions\.jpeg\.weight: must be a finite number, not nan"),
        ({"jpeg": {"required": "no"}}, r"reward\.reward_functions\.jpeg\.required: must be true or false, not no"),
        ({"jpeg": {"use": "test"}}, r"reward\.reward_functions\.jpeg\.use: 'test' is not one of training, evaluation"),
        ({"jpeg": {"use": "evaluation"}}, "the weights must add up to more than 0, not 0"),
        ({"jpeg": {}, "color": {"use": "evaluation", "weight": 1}}, r"color\.weight: is not read with use=evaluation"),
        ({"jpeg": {}, "color": {"use": "evaluation", "required": True}}, r"color\.required: is not read with"),
        (
            {"combined": {"name": "jpeg"}},
            r"reward\.reward_functions\.combined: the reward of all scorers has this name",
        ),
    ],
)
def test_reward_functions_without_a_usable_reward_are_refused(settings: Settings, functions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        multi(settings(reward_functions=functions))


def test_an_unknown_aggregation_is_refused(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"reward.aggregation: 'product' is not one of weighted_mean, weighted_sum"):
        multi(settings(reward_functions={"brightness": {}}, aggregation="product"))
