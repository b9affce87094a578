"""`diffusion_single_turn_agent`: the agent loop of one prompt and one sample."""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from typing_extensions import override
from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.utils.tokenizer import normalize_token_ids

from verl_omni.agent_loop.output import DiffusionAgentLoopOutput
from verl_omni.utils.messages import prompt_text

logger = logging.getLogger(__name__)


class SampleAborted(RuntimeError):
    """The server aborted a sample, and the client did not retry it."""


class PromptTooLong(ValueError):
    """A prompt has more tokens than `data.max_prompt_length`, and `data.truncation` is `error`."""


class DiffusionSingleTurnAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Tokenizes the prompt, requests one sample, and returns all fields of the server's output.

    Args:
        extra_tokenizer_map: tokenizers of the model's other text encoders, {name: {"tokenizer": …, "max_length": int
            or None}}; None: no truncation. Their ids are sent as `extra_prompt_ids`, by name.
    """

    def __init__(
        self, *args: Any, extra_tokenizer_map: Mapping[str, Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.extra_tokenizer_map = extra_tokenizer_map

    @override
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> DiffusionAgentLoopOutput:
        """Generate a sample for one row.

        Args:
            sampling_params: see `vLLMOmniHttpServer.generate`.
            kwargs: the row: `raw_prompt` (list of messages, required), and optionally `raw_negative_prompt` (messages
                or text). Without a processor, a negative prompt without images gets the prompt's images.

        Raises:
            KeyError: the row has no `raw_prompt`.
            PromptTooLong: a prompt is too long, and `data.truncation` is `error`.
            ValueError: a prompt with images or videos is too long; it cannot be truncated.
            SampleAborted: the server aborted the sample.
        """
        prompt = kwargs["raw_prompt"]
        negative = kwargs.get("raw_negative_prompt")
        if isinstance(negative, str):
            negative = [{"role": "user", "content": negative}]
        # Text prompts do not need the image packages that verl imports for every model with a processor.
        media = await self.process_vision_info(prompt) if _parts(prompt) else {}
        images = media.get("images")
        videos = media.get("videos")
        if self.processor is None and images and negative is not None and not _images(negative):
            negative = _with_images(negative, images)  # an editing model sees the image with either prompt
        prompt_ids = await self._token_ids(prompt, images, videos)
        negative_ids = await self._token_ids(negative, images, videos) if negative is not None else None
        began = time.perf_counter()
        output = await self.server_manager.generate(
            request_id=uuid4().hex,
            prompt_ids=prompt_ids,
            sampling_params=sampling_params,
            image_data=images,
            video_data=videos,
            negative_prompt_ids=negative_ids,
            **self._extra_ids(prompt, negative),
            **self._lost_text("prompt_text", prompt, prompt_ids),
            **self._lost_text("negative_prompt_text", negative, negative_ids),
        )
        if output.stop_reason == "aborted":
            raise SampleAborted("the server aborted the sample; to retry, use DiffusionWholeSampleRetryLLMServerClient")
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

    @override
    async def process_vision_info(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Images and videos of the prompt; without a processor the images only, unchanged."""
        if self.processor is None:
            return {"images": _images(messages) or None}
        media: dict[str, Any] = await super().process_vision_info(messages)
        return media

    async def _token_ids(self, messages: list[dict[str, Any]], images: Any, videos: Any) -> list[int]:
        if self._template_owner() is not None:
            ids: list[int] = await self.ct_build_initial_tokens(messages, images=images, videos=videos)
            return ids
        return self._plain_ids(prompt_text(messages))

    def _template_owner(self) -> Any:
        """The processor, else the tokenizer; None if it has no chat template."""
        owner = self.processor or self.tokenizer
        return owner if getattr(owner, "chat_template", None) else None

    def _plain_ids(self, text: str) -> list[int]:
        """Token ids of plain text, with special tokens, for text encoders without a chat template."""
        limit = self.rollout_config.prompt_length
        ids = normalize_token_ids(self.tokenizer(text, truncation=False)["input_ids"])
        if len(ids) <= limit:
            return list(ids)
        self._may_truncate(ids)
        return list(normalize_token_ids(self.tokenizer(text, truncation=True, max_length=limit)["input_ids"]))

    @override
    def _cap_text_prompt_length(self, prompt_ids: list[int]) -> list[int]:
        """The ids of a prompt with a chat template, truncated on the right if they are too many."""
        limit = self.rollout_config.prompt_length
        if len(prompt_ids) > limit:
            self._may_truncate(prompt_ids)
        return prompt_ids[:limit]

    def _may_truncate(self, ids: Sequence[int]) -> None:
        text = f"prompt of {len(ids)} tokens; data.max_prompt_length is {self.rollout_config.prompt_length}"
        shown = f"{self.tokenizer.decode(ids, skip_special_tokens=True):.80}"
        if self.data_config.get("truncation", "error") == "error":
            raise PromptTooLong(
                f"{text}: raise it, or write data.truncation=right or data.filter_overlong_prompts=true: {shown}"
            )
        logger.warning("%s, so it loses its end: %s", text, shown)

    def _lost_text(self, name: str, messages: list[dict[str, Any]] | None, ids: list[int] | None) -> dict[str, str]:
        """{name: text} if the ids lose information: a CLIP tokenizer drops case and spacing, which T5 keeps.

        The text is also returned if the ids do not come from the model's first tokenizer, because the engine would
        decode them with it. With a chat template, the text is the rendered one. For a truncated prompt, it is the
        text of the remaining ids. {} for a prompt whose ids include image placeholders.
        """
        if messages is None or ids is None:
            return {}
        plain = self._template_owner() is None
        if not plain and any("text" not in part for part in _parts(messages)):
            return {}
        text = self._encoder_text(messages)
        path = self.config.actor_rollout_ref.model.path
        tokenizer_path = self.config.actor_rollout_ref.model.tokenizer_path
        # Whether the engine decodes ids with the same tokenizer.
        first = tokenizer_path is None or _same_folder(tokenizer_path, f"{path}/tokenizer")
        # For plain text the tokenizer adds the special tokens; a chat template has them in its text.
        if first and self.tokenizer.decode(ids, skip_special_tokens=plain) == text:
            return {}
        untruncated = self.tokenizer(text, add_special_tokens=plain, truncation=False)["input_ids"]
        if len(normalize_token_ids(untruncated)) <= len(ids):
            return {name: text}
        return {} if first else {name: self.tokenizer.decode(ids, skip_special_tokens=True)}

    def _extra_ids(self, prompt: list[dict[str, Any]], negative: list[dict[str, Any]] | None) -> dict[str, Any]:
        """`extra_prompt_ids` and `negative_extra_prompt_ids` (None without a negative prompt); {} without a map."""
        if not self.extra_tokenizer_map:
            return {}
        return {
            "extra_prompt_ids": self._by_encoder(prompt),
            "negative_extra_prompt_ids": self._by_encoder(negative) if negative is not None else None,
        }

    def _by_encoder(self, messages: list[dict[str, Any]]) -> dict[str, list[int]]:
        """Unpadded ids of the text from each encoder's tokenizer, with special tokens."""
        assert self.extra_tokenizer_map is not None
        text = self._encoder_text(messages)
        ids = {}
        for name, entry in self.extra_tokenizer_map.items():
            length = entry["max_length"]
            read = entry["tokenizer"](text, add_special_tokens=True, truncation=length is not None, max_length=length)
            ids[name] = list(normalize_token_ids(read["input_ids"]))
        return ids

    def _encoder_text(self, messages: list[dict[str, Any]]) -> str:
        """The text that text encoders read: the chat template's, or the user's."""
        owner = self._template_owner()
        if owner is None:
            return prompt_text(messages)
        text: str = owner.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **self.apply_chat_template_kwargs
        )
        return text


@cache
def _same_folder(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _parts(messages: list[dict[str, Any]]) -> list[Any]:
    contents = [message["content"] for message in messages]
    return [part for content in contents if not isinstance(content, str) for part in content]


def _images(messages: list[dict[str, Any]]) -> list[Any]:
    return [part["image"] for part in _parts(messages) if part.get("type") == "image"]


def _with_images(messages: list[dict[str, Any]], images: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages with the images in front of the last one."""
    parts = [{"type": "image", "image": image} for image in images]
    *others, last = messages
    return [*others, {**last, "content": [*parts, {"type": "text", "text": prompt_text([last])}]}]
