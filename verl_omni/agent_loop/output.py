"""Output of an agent loop for a row: verl-omni's types, of which `sample_of` makes a `Sample`."""

from collections.abc import Collection
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from verl_omni.reward_loop.scorer_results import FAILURE
from verl_omni.samples import RECORDED, Recording, Sample
from verl_omni.utils.columns import TIMES_ABORTED, TIMES_LOST

PADDED_FIELDS = ("prompt_embeds", "prompt_embeds_mask", "negative_prompt_embeds", "negative_prompt_embeds_mask")


class DiffusionAgentLoopOutput(BaseModel):
    """One sample of one row.

    Attributes:
        prompt_ids: unpadded token ids.
        response_diffusion_output: pixels or latents, [C, H, W] or [T, C, H, W].
        response_logprobs: float32 [T_sde], one per recorded step, or None.
        reward_score: score, if the loop computes it; the reward workers are not called then.
        num_turns: number of messages.
        metrics: seconds of each phase.
        extra_fields: all other fields that the server returned.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    prompt_ids: list[int]
    response_diffusion_output: Any
    response_logprobs: Any | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class _InternalDiffusionAgentLoopOutput(DiffusionAgentLoopOutput):
    """The same with tensors that have a leading dimension of 1: prompt_ids int64 [1, P], and so on.

    The response is None when `carry_responses` is false.
    """

    prompt_ids: torch.Tensor  # type: ignore[assignment]
    response_diffusion_output: torch.Tensor | None
    response_logprobs: torch.Tensor | None = None


def sample_of(output: DiffusionAgentLoopOutput, conditions: Collection[str]) -> Sample:
    """The sample that a loop returned, its open fields by their meaning.

    Args:
        conditions: names in the family's `CONDITIONS`.
    """
    fields = output.extra_fields
    tensors = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
    if output.response_logprobs is not None:
        tensors["rollout_log_probs"] = output.response_logprobs
    typed = {*RECORDED, *conditions, *PADDED_FIELDS, FAILURE, TIMES_LOST, TIMES_ABORTED}
    return Sample(
        media=output.response_diffusion_output,
        recording=Recording(**{name: tensors[name] for name in RECORDED if name in tensors}),
        conditions={name: tensors[name] for name in conditions if name in tensors},
        scorer_fields={name: value for name, value in fields.items() if name not in typed},
        version=fields.get("global_steps"),
        score=output.reward_score,
        failure=fields.get(FAILURE),
        times_lost=fields.get(TIMES_LOST, 0),
        times_aborted=fields.get(TIMES_ABORTED, 0),
    )
