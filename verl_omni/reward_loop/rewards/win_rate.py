"""Scorer by pairwise preferences of a vision-language judge (Pref-GRPO, arXiv:2508.20751)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Attempts, JudgeModel, JudgeUrl, KeyVariable, Seconds, Tokens

if TYPE_CHECKING:
    from torch import Tensor

MODALITY = "image"
ASKS_JUDGE = True
QUESTIONS = 64  # questions at a time
TEMPLATE = """\
Two images were generated from this caption. Compare how well they show the objects, attributes and relations of the \
caption, then how sharp, coherent and free of artifacts they are.
Caption: {prompt}
Give your reasons in a sentence or two, and end with a line "Better: 1" or "Better: 2"."""
Template = Annotated[
    str | None,
    Field(pattern=r"\{prompt\}", description="What the judge is asked, with {prompt} in place of the prompt."),
]


async def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    groups: Sequence[str],
    base_url: JudgeUrl = None,
    model: JudgeModel = None,
    api_key_env: KeyVariable = None,
    timeout: Seconds = 60.0,
    attempts: Attempts = 3,
    max_tokens: Tokens = 512,
    template: Template = None,
    reward_router_address: str | None = None,
    model_name: str | None = None,
) -> list[dict[str, float] | None]:
    """The share of the other samples of its prompt that a judge finds worse, from 0 to 1; 0.5 for a single sample.

    The judge compares the samples of a prompt in pairs, n (n - 1) / 2 questions for n samples. Each sample is the first
    image of about half of its pairs, because judges prefer a place. Pairs for which the judge names no image count for
    neither; a sample without any other pair has no score.

    Args:
        groups: which samples belong to the same prompt.
        base_url, model, api_key_env, timeout, attempts, max_tokens: settings of the judge, see `judge_client`.
        template: the question instead of TEMPLATE; `{prompt}` in it becomes the prompt.

    Raises:
        JudgeError: the judge did not answer, or refused to.
        ValueError: a setting is missing or invalid, or a sample is a video.
    """
    from verl_omni.reward_loop.judge_answers import better_of_two
    from verl_omni.reward_loop.judge_client import JudgeError, connect
    from verl_omni.reward_loop.rewards import check_picture

    for image in solution_images:
        check_picture(image, "win_rate")
    judge = connect(
        base_url,
        model,
        api_key_env,
        reward_router_address=reward_router_address,
        model_name=model_name,
        timeout=timeout,
        attempts=attempts,
        max_tokens=max_tokens,
    )
    places = asyncio.Semaphore(QUESTIONS)

    async def better(first: int, second: int) -> int | None:
        """The better sample of a pair, by its number."""
        question = (template or TEMPLATE).replace("{prompt}", str(extra_infos[first].get("prompt")))
        async with places:
            answer = await judge.ask(solution_images[first], question, solution_images[second])
        winner = better_of_two(answer)
        return None if winner is None else (first, second)[winner - 1]

    pairs = pairs_of(groups)
    try:
        async with asyncio.TaskGroup() as asked:
            questions = [asked.create_task(better(*pair)) for pair in pairs]
    except* JudgeError as failed:
        raise failed.exceptions[0] from None
    return win_rates(groups, pairs, [question.result() for question in questions])


def pairs_of(groups: Sequence[str]) -> list[tuple[int, int]]:
    """PURE: all pairs of samples of the same group; of each sample's pairs, it is the first in about half."""
    members: dict[str, list[int]] = {}
    for sample, group in enumerate(groups):
        members.setdefault(group, []).append(sample)
    return [
        (samples[first], samples[second]) if (second - first) % 2 else (samples[second], samples[first])
        for samples in members.values()
        for first, second in combinations(range(len(samples)), 2)
    ]


def win_rates(
    groups: Sequence[str], pairs: Sequence[tuple[int, int]], winners: Sequence[int | None]
) -> list[dict[str, float] | None]:
    """PURE: w_i = (1 / m_i) * sum over j of [i beats j], over the m_i pairs of sample i that have a winner.

    Returns:
        For each sample `score`, and `compared`: m_i over the number of its pairs. None where m_i is 0.
    """
    wins = [0] * len(groups)
    compared = [0] * len(groups)
    rivals = [groups.count(group) - 1 for group in groups]
    for pair, winner in zip(pairs, winners, strict=True):
        if winner is not None:
            wins[winner] += 1
            for sample in pair:
                compared[sample] += 1
    results: list[dict[str, float] | None] = []
    for sample, others in enumerate(rivals):
        if others == 0:
            results.append({"score": 0.5, "compared": 0.0})
        elif compared[sample] == 0:
            results.append(None)
        else:
            results.append({"score": wins[sample] / compared[sample], "compared": compared[sample] / others})
    return results
