"""`diffusion_single_turn_agent`: one prompt, one sample."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

from typing_extensions import override
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, register
from verl.utils.tokenizer import normalize_token_ids

from verl_omni.agent_loop.output import DiffusionAgentLoopOutput

logger = logging.getLogger(__name__)


@register("diffusion_single_turn_agent")
class DiffusionSingleTurnAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Tokenize the prompt, ask a server for one sample, hand back all that it returned."""

    @override
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> DiffusionAgentLoopOutput:
        """Make a sample for one row.

        Args:
            sampling_params: see `vLLMOmniHttpServer.generate`.
            kwargs: the row: `raw_prompt` (list of messages, required) and maybe `raw_negative_prompt`
                (messages, or a text).

        Raises:
            KeyError: the row has no `raw_prompt`.
            ValueError: a prompt with images or videos is too long to be cut.
        """
        prompt = kwargs["raw_prompt"]
        media = await self.process_vision_info(prompt)
        images, videos = media.get("images"), media.get("videos")
        prompt_ids = await self._token_ids(prompt, images, videos)
        negative = kwargs.get("raw_negative_prompt")
        negative_ids = await self._token_ids(_messages(negative), images, videos) if negative is not None else None
        began = time.perf_counter()
        output = await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params,
            image_data=images, video_data=videos, negative_prompt_ids=negative_ids,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        preempted = output.num_preempted if output.num_preempted is not None else -1
        return DiffusionAgentLoopOutput(
            prompt_ids=prompt_ids,
            response_diffusion_output=output.diffusion_output,
            response_logprobs=output.log_probs,
            num_turns=2,
            metrics={"generate_sequences": seconds, "num_preempted": preempted},  # type: ignore[arg-type]
            extra_fields=output.extra_fields,
        )

    async def _token_ids(self, messages: list[dict[str, Any]], images: Any, videos: Any) -> list[int]:
        if getattr(self.processor or self.tokenizer, "chat_template", None):
            ids: list[int] = await self.ct_build_initial_tokens(messages, images=images, videos=videos)
            return ids
        return self._plain_ids(" ".join(str(message["content"]) for message in messages))

    def _plain_ids(self, text: str) -> list[int]:
        """Text encoders of diffusion models have no chat template: the text itself, with start and end tokens."""
        limit = self.rollout_config.prompt_length
        ids = normalize_token_ids(self.tokenizer(text, truncation=False)["input_ids"])
        if len(ids) <= limit:
            return list(ids)
        logger.warning("prompt of %d tokens is cut to rollout.prompt_length=%d: %.80s", len(ids), limit, text)
        return list(normalize_token_ids(self.tokenizer(text, truncation=True, max_length=limit)["input_ids"]))


def _messages(prompt: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
