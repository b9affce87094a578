"""PURE: prompts and sampling parameters of a language model, and its outputs as verl's `TokenOutput`."""

from collections.abc import Mapping
from typing import Any

from verl.workers.rollout.replica import TokenOutput
from vllm import SamplingParams

from verl_omni.workers.rollout.vllm_rollout.server.outputs import stop_reason
from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest, attended_ids, check_extra_ids


def token_sampling_params(
    params: Mapping[str, Any],
    *,
    prompt_length: int,
    max_model_len: int,
    response_length: int,
    repetition_penalty: float = 1.0,
) -> SamplingParams:
    """vLLM's sampling parameters. The input is not modified.

    Args:
        params: `max_tokens` or `max_new_tokens` limits the response (default: `response_length`), and the model's
            maximum length limits it further. `logprobs` is True (of the chosen tokens), a number (of that many more
            tokens), or not set.

    Raises:
        ValueError: the prompt is empty or leaves no room for a token, or a parameter is unknown to vLLM.
    """
    if unknown := params.keys() - {*SamplingParams.__struct_fields__, "max_new_tokens"}:
        raise ValueError(f"Unknown sampling parameters: {', '.join(sorted(unknown))}")
    if prompt_length < 1:
        raise ValueError("The prompt has no tokens")
    room = max_model_len - prompt_length
    if room < 1:
        raise ValueError(
            f"Prompt length ({prompt_length}) meets or exceeds the model's maximum length ({max_model_len}): "
            "there is no room for a response"
        )
    known = dict(params)
    limits = [known.pop(name, None) for name in ("max_tokens", "max_new_tokens")]
    limit = next((limit for limit in limits if limit is not None), response_length)
    known["logprobs"] = _logprobs(known.get("logprobs"))
    known.setdefault("repetition_penalty", repetition_penalty)
    return SamplingParams(max_tokens=max(1, min(limit, room)), **known)


def token_prompt(request: RolloutRequest) -> dict[str, Any]:
    """vLLM's prompt of token ids.

    Raises:
        ValueError: as of `attended_ids`, or there is a negative prompt or token ids of other encoders.
    """
    if request.negative_prompt_ids is not None:
        raise ValueError("negative_prompt_ids are not read: a language model has no negative prompt")
    check_extra_ids(request, "a language model", reads=False)
    prompt: dict[str, Any] = {"prompt_token_ids": attended_ids(request)}
    if media := request.media():
        prompt["multi_modal_data"] = media
    if request.mm_processor_kwargs:
        prompt["mm_processor_kwargs"] = request.mm_processor_kwargs
    return prompt


def to_token_output(result: Any, *, global_steps: int | None) -> TokenOutput:
    """Convert the engine's last output of one request.

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
    """Output of a request that was aborted before it reached the engine."""
    return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields={"global_steps": global_steps})


def _logprobs(requested: Any) -> int | None:
    if requested is True:
        return 0
    return requested if isinstance(requested, int) and requested is not False else None
