"""Output of an agent loop for a row, and its padded form with a batch dimension."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics


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
