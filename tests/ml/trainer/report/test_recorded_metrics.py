"""The report makes a statement about a metric only if the run recorded it."""

import re
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from verl_omni.trainer import report
from verl_omni.trainer.report.page import render
from verl_omni.trainer.report.run_data import Line, Run

pytestmark = pytest.mark.slow  # renders a page for each test

# Metric -> all that the page says about it.
STATEMENTS = {
    "reward/mean": ['"training reward"'],
    "reward/std": ["Band: one standard deviation"],
    "reward/sharpness/mean": [">sharpness<", '"training sharpness"'],
    "val/reward/mean": ["held-out reward", '"col">reward<', "Every evaluation generates"],
    "val/reward/stderr": ["standard error"],
    "val/n": ["9 prompts", ">prompts<"],
    "val/correct/mean": ["correct images", ">correct<", '"held-out correct"'],
    "reward/unscored": ["training samples could not be scored"],
    "val/reward/unscored": ["held-out samples could not be scored"],
    "reward/constant_prompts": ["Prompts whose samples all had the same reward"],
    "rollout/samples_lost": ["Samples generated again, because their replica was lost"],
    "rollout/requests_aborted": ["Requests aborted and repeated"],
    "rollout/idle_share": ["Share of a step in which the engines were idle"],
    "images_per_s": ["Throughput"],
    "timing_s/generate": [">generate<", '"generate"'],
    "timing_s/update": [">update<", '"update"'],
    "timing_s/sync": [">sync<", '"sync"', "Seconds of each weight sync"],
    "timing_s/step": [">other<", '"other"', " in steps"],
    "timing_s/eval": [">evaluations<", "in evaluations"],
    "weights/version": ["weight version"],
    "rollout_corr/mean_abs_diff": ["The largest mean difference", '"mean"'],
    "rollout_corr/max_abs_diff": ['"largest"'],
    "actor/loss": ["Loss"],
    "actor/grad_norm": ["Gradient norm"],
    "actor/clip_fraction": ["Clip fraction"],
    "actor/clip_fraction_at_start": ["Ratios clipped in the first optimizer step"],
    "actor/ratio_max": ["Largest probability ratio"],
    "actor/kl": ["KL to the base model"],
    "actor/kl_to_old": ["KL to the policy before the update"],
    "actor/kl_to_old_max": ["Largest KL of a step"],
    "actor/distance_to_old": ["Distance to the old policy"],
    "actor/margin": ["Margin of the preferred sample"],
    "actor/accuracy": ["Preference accuracy"],
    "actor/preferred_fraction": ["Fraction of pairs with a preference"],
    "actor/lr": ["Learning rate"],
    "actor/optimizer_steps": ["Optimizer steps"],
    "actor/skipped_steps": ["Updates skipped"],
    "actor/new_metric": ["actor/new_metric"],
    "diversity/reward_std_within_prompt": ["Standard deviation of the rewards within a prompt"],
    "actor/distance_to_base": ["Distance to the base model"],
    "actor/ratio_distance": ["Distance of the likelihood ratio from 1"],
    "images/luminance": [">Luminance<"],
    "images/dark": ["Share of dark pixels"],
    "images/clipped": ["Share of color values at 0 or 255"],
    "images/saturation": [">Saturation<"],
    "images/edges": ["Edges: mean difference of neighboring pixels"],
    "images/jpeg_bits": ["Bits per pixel as a JPEG"],
    "images/diversity": ["Diversity of the images of a prompt"],
    "diversity/images": ["Image diversity", "Pixel standard deviation across held-out images"],
}
# Constant 0, as a metric that is reported and never computed would be.
CONSTANT = ("actor/clip_fraction", "actor/kl", "actor/new_metric")


def page(without: str | None = None) -> str:
    """The page of a run that recorded all metrics but one, without plotly.js."""
    lines: list[Line] = [
        {"step": step, **{name: (number + step) / 7 for number, name in enumerate(STATEMENTS)}} for step in range(1, 4)
    ]
    for line in lines:
        line |= dict.fromkeys(CONSTANT, 0.0) | {"val/n": 9.0, "weights/version": line["step"]}
        line |= {"timing_s/step": 100.0}
    kept = [{name: value for name, value in line.items() if name != without} for line in lines]
    return render(Run("run", lines=kept)).replace(get_plotlyjs(), "")


@pytest.fixture(scope="module")
def complete() -> str:
    return page().lower()


@pytest.mark.parametrize("metric", STATEMENTS)
def test_without_a_metric_the_page_says_nothing_about_it(metric: str, complete: str) -> None:
    text = page(without=metric).lower()
    for statement in STATEMENTS[metric]:
        assert statement.lower() in complete
        assert statement.lower() not in text


def test_an_old_policy_that_equals_the_current_one_is_named() -> None:
    lines: list[Line] = [{"step": step, "actor/distance_to_old": 0.0, "actor/kl": 0.0} for step in (1, 2)]
    text = render(Run("run", lines=lines))
    assert "Distance to the old policy: 0 at every step: the old policy was the current one" in text
    assert "KL to the base model: 0 at every step." in text


def test_every_metric_that_the_report_reads_is_in_this_test() -> None:
    kinds = r'"((?:reward|val|actor|timing_s|rollout_corr|diversity|weights|images|rollout)/[\w/]+|images_per_s)"'
    sources = Path(report.__file__).parent
    text = "".join(file.read_text() for file in sources.rglob("*") if file.suffix in (".py", ".j2"))
    named = set(re.findall(kinds, text))
    assert named
    # The wait takes the place of generation that overlaps the update: test_statements.
    assert named - {"timing_s/wait"} <= STATEMENTS.keys()
