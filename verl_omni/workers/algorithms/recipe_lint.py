"""PURE: settings of a run that published runs report as harmful, or do not use; imports neither torch nor verl.

`drl` and the operator read the settings that a job becomes, and the trainer its own, so all three print the same. The
messages are warnings: no run is refused for them. Each ends with its source, a paper or a thread on github.com.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from verl_omni.pipelines.registry import FOLDERS
from verl_omni.reward_loop.part_settings import only_evaluates
from verl_omni.reward_loop.rewards import leaves_much_open
from verl_omni.settings_schema.layout import default_algorithm
from verl_omni.workers.algorithms.description import ACTOR, ROLLOUT, RegisteredAlgorithm
from verl_omni.workers.algorithms.registered import ALGORITHMS

SAMPLES = f"{ROLLOUT}.n"
PROMPTS = "data.train_batch_size"
STEPS = f"{ROLLOUT}.pipeline.num_inference_steps"
NOISE = f"{ROLLOUT}.algo.noise_level"
LOSS = f"{ACTOR}.diffusion_loss.loss_mode"
USE_KL = f"{ACTOR}.use_kl_loss"
RATE = f"{ACTOR}.optim.lr"
RANK = "actor_rollout_ref.model.lora_rank"
MODEL = "actor_rollout_ref.model.path"
SCORER = "reward.scorer"
FUNCTIONS = "reward.reward_functions"

FEWEST_SAMPLES = 8
FEWEST_PROMPTS = 8
FEWEST_STEPS = 8
# Ten times the published rates: Flow-GRPO's for adapters, verl-omni's for all weights.
HIGHEST_ADAPTER_RATE = 3e-3
HIGHEST_WHOLE_RATE = 3e-4
# Names of models that were distilled to few steps.
_NAMED = (
    r"turbo|lightning|distill|[-_.]lcm|[-_.]dmd",
    *(folder.distilled for folder in FOLDERS.values() if folder.distilled),
)
DISTILLED = re.compile("|".join(_NAMED), re.IGNORECASE)
FLOW_GRPO = "arXiv:2505.05470"


@dataclass(frozen=True, slots=True)
class Risk:
    """A value that is known to harm a run.

    Attributes:
        setting: the trainer's name of the setting.
        text: its value, the reason and the source.
    """

    setting: str
    text: str


def find_risks(read: Callable[[str], Any]) -> list[Risk]:
    """Warnings about a recipe; none for an algorithm of a user's module.

    Args:
        read: the value of a setting, or None for one that is not set. Numbers are numbers, not texts.
    """
    algorithm = ALGORITHMS.get(str(read(LOSS) or default_algorithm()))
    if algorithm is None:
        return []
    risks = [*_distance_risks(read, algorithm), *_rate_risks(read)]
    if algorithm.row == "sample":
        risks += [*_group_risks(read), *_distilled_risks(read, algorithm)]
        if algorithm.on_recorded_steps and (read(NOISE) or 0) > 0 and (steps := read(STEPS)) < FEWEST_STEPS:
            text = (
                f"is {steps}: with fewer than {FEWEST_STEPS} steps the noise of each step is so large that images stay "
                f"noisy, and scorers judge the noise; Flow-GRPO trains with 10 ({FLOW_GRPO})"
            )
            risks.append(Risk(STEPS, text))
    return risks


def _group_risks(read: Callable[[str], Any]) -> Iterator[Risk]:
    samples = read(SAMPLES)
    if samples < FEWEST_SAMPLES:
        yield Risk(
            SAMPLES,
            f"is {samples}: advantages compare the samples of one prompt, and with fewer than {FEWEST_SAMPLES} their "
            f"mean and deviation are mostly chance; Flow-GRPO's runs with small groups collapsed ({FLOW_GRPO}, "
            "yifan123/flow_grpo#185)",
        )
    prompts = read(PROMPTS)
    if prompts < FEWEST_PROMPTS:
        yield Risk(
            PROMPTS,
            f"is {prompts}: each update follows the few prompts of its step, and rewards jump; Flow-GRPO uses 48 "
            "prompts a step (yifan123/flow_grpo#201)",
        )


def _distance_risks(read: Callable[[str], Any], algorithm: RegisteredAlgorithm) -> Iterator[Risk]:
    """Nothing holds the policy to the base model."""
    if algorithm.near_base == "ref_kl_coef":
        setting = f"{ACTOR}.diffusion_loss.{algorithm.near_base}"
        if not read(setting):
            yield Risk(
                setting,
                "is 0: without this distance to the base model the policy collapses easily (NVlabs/DiffusionNFT#9); "
                "DiffusionNFT's runs use 0.0001",
            )
    elif algorithm.on_recorded_steps and not read(USE_KL):
        gamed = sorted(filter(leaves_much_open, _scorers(read)))
        if gamed:
            yield Risk(
                USE_KL,
                f"is false with the scorer {gamed[0]}, which a policy can please at the cost of the rest of the image: "
                "without KL to the base model backgrounds went dark while the score rose (Tencent-Hunyuan/UniRL#407); "
                f"Flow-GRPO uses true with kl_loss_coef=0.04 ({FLOW_GRPO})",
            )


def _scorers(read: Callable[[str], Any]) -> set[str]:
    """Names of the built-in scorers that are trained on."""
    functions = read(FUNCTIONS) or {}
    trained = {key: part for key, part in functions.items() if part.get("weight", 1) and not only_evaluates(part)}
    named = {str(part.get("name") or key) for key, part in trained.items()}
    return named or {str(read(SCORER))}


def _distilled_risks(read: Callable[[str], Any], algorithm: RegisteredAlgorithm) -> Iterator[Risk]:
    # The last two parts, such as organisation and model: `/data/turbo/models/sd35` is no Turbo model.
    name = "/".join(str(read(MODEL)).rstrip("/").split("/")[-2:])
    if DISTILLED.search(name) and ((read(NOISE) or 0) > 0 or not algorithm.on_recorded_steps):
        how = "noise between its steps" if algorithm.on_recorded_steps else "a flow-matching loss"
        yield Risk(
            MODEL,
            f"is {name}, by its name distilled to few steps: {how} is not what it was distilled for, and images blur "
            "until training collapses (NVlabs/DiffusionNFT#45); train the model that it was distilled from",
        )


def _rate_risks(read: Callable[[str], Any]) -> Iterator[Risk]:
    adapter = bool(read(RANK))
    most = HIGHEST_ADAPTER_RATE if adapter else HIGHEST_WHOLE_RATE
    rate = read(RATE)
    usual = f"3e-4 for adapters ({FLOW_GRPO})" if adapter else "3e-5 for all weights (verl-omni)"
    if rate == 0:
        yield Risk(RATE, f"is 0: no weight changes, so nothing is learned; published runs use {usual}")
    if rate > most:
        yield Risk(RATE, f"is {rate:g}: more than ten times what published runs use, {usual}")
