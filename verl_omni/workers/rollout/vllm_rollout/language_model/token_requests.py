"""PURE: requests to a model that makes tokens, and its answers as verl's `TokenOutput`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.utils.tokenizer import normalize_token_ids
from verl.workers.rollout.replica import TokenOutput
from vllm import SamplingParams

from verl_omni.workers.rollout.vllm_rollout.server.outputs import stop_reason
from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest


def token_sampling_params(
    params: Mapping[str, Any],
    *,
    prompt_length: int,
    max_model_len: int,
    response_length: int,
    repetition_penalty: float = 1.0,
) -> SamplingParams:
    """vLLM's parameters. The input is not changed.

    Args:
        params: `max_tokens` or `max_new_tokens` bounds the answer (otherwise `response_length`), as far as the model
            has room; `logprobs` is True (of the chosen tokens), a number (of that many more), or nothing.

    Raises:
        ValueError: the prompt is empty or leaves no room for a token, or vLLM does not know a parameter.
    """
    if unknown := params.keys() - {*SamplingParams.__struct_fields__, "max_new_tokens"}:
        raise ValueError(f"Unknown sampling parameters: {', '.join(sorted(unknown))}")
    if prompt_length < 1:
        raise ValueError("The prompt has no tokens")
    room = max_model_len - prompt_length
    if room < 1:
        raise ValueError(
            f"Prompt length ({prompt_length}) meets or exceeds the model's maximum length ({max_model_len}): "
            "there is no room for an answer"
        )
    made = dict(params)
    limits = [made.pop(name, None) for name in ("max_tokens", "max_new_tokens")]
    asked = next((limit for limit in limits if limit is not None), response_length)
    made["logprobs"] = _logprobs(made.get("logprobs"))
    made.setdefault("repetition_penalty", repetition_penalty)
    return SamplingParams(max_tokens=max(1, min(asked, room)), **made)


def token_prompt(request: RolloutRequest) -> dict[str, Any]:
    """vLLM's prompt of token ids."""
    made: dict[str, Any] = {"prompt_token_ids": normalize_token_ids(request.prompt_ids)}
    if media := request.media():
        made["multi_modal_data"] = media
    if request.mm_processor_kwargs:
        made["mm_processor_kwargs"] = request.mm_processor_kwargs
    return made


def to_token_output(result: Any, *, global_steps: int | None) -> TokenOutput:
    """The engine's last output of one request.

    Raises:
        RuntimeError: the request ended without an output.
    """
    if result is None or not result.outputs:
        raise RuntimeError("the engine ended the request without an output")
    completion = result.outputs[0]
    ids = list(completion.token_ids)
    chosen = None
    if completion.logprobs is not None:
        chosen = [among[token].logprob for among, token in zip(completion.logprobs, ids, strict=True)]
    return TokenOutput(
        token_ids=ids,
        log_probs=chosen,
        stop_reason=stop_reason(completion.finish_reason),
        num_preempted=getattr(completion, "num_preempted", None),
        extra_fields={"global_steps": global_steps},
    )


def aborted_token_output(*, global_steps: int | None) -> TokenOutput:
    """An answer that never began."""
    return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={"global_steps": global_steps})


def _logprobs(asked: Any) -> int | None:
    if asked is True:
        return 0
    return asked if isinstance(asked, int) and asked is not False else None
