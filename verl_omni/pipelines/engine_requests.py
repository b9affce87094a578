"""Engine requests: the SDE window, the fields to return, the prompt text and the random generator of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from verl_omni.algos import window
from verl_omni.pipelines.sde_sampler import Window


@dataclass(frozen=True, slots=True)
class RequestedFields:
    """What goes back beside the picture; how the picture is drawn does not depend on it.

    Attributes:
        steps: the window's steps and their log-probabilities, for algorithms that compare likelihoods.
        clean_latents: what the decoder is given, for algorithms that add noise of their own to it.
        version: of the weights that drew it.
    """

    steps: bool = False
    clean_latents: bool = False
    version: bool = False


def requested_fields(extra: Mapping[str, Any]) -> RequestedFields:
    """What the extra arguments of one request ask for: `logprobs`, `clean_latents`, `weights_version`."""
    return RequestedFields(
        steps=bool(extra.get("logprobs")),
        clean_latents=bool(extra.get("clean_latents")),
        version=bool(extra.get("weights_version")),
    )


def sde_window(extra: Mapping[str, Any], steps: int, seed: int) -> Window | None:
    """The window of one request, or None when it follows the ODE from end to end.

    Args:
        extra: the fields of `DiffusionRolloutAlgoConfig`, and `global_steps`, the version of the weights, which is
            the number of training steps that are done: a progressive window is where that number says.
        steps: denoising steps.
        seed: what the request's noise is drawn from; a random window starts where it says.
    """
    noise_level = float(extra.get("noise_level") or 0.0)
    if noise_level <= 0:
        return None
    start, size = window.place(
        steps=steps,
        size=extra.get("sde_window_size"),
        bounds=extra.get("sde_window_range"),
        strategy=extra.get("sample_strategy") or "random",
        seed=seed + int(extra.get("sde_window_seed") or 0),
        global_step=int(extra.get("global_steps") or 0),
        iters_per_group=int(extra.get("iters_per_group") or 1),
    )
    return Window(start=start, size=size, noise_level=noise_level, kind=str(extra.get("sde_type") or "sde"))


def with_text(prompt: Any, tokenizer: Any) -> Any:
    """A prompt of token ids with their text, for a pipeline that tokenizes texts itself; the input is not changed."""
    if isinstance(prompt, str) or prompt.get("prompt"):
        return prompt
    made = dict(prompt)
    for ids, text in (("prompt_token_ids", "prompt"), ("negative_prompt_ids", "negative_prompt")):
        if prompt.get(ids) is not None:
            made[text] = tokenizer.decode(list(prompt[ids]), skip_special_tokens=True)
    return made


def own_generator(params: Any, device: torch.device) -> torch.Generator:
    """The engine makes a generator where a seed was given; a request without one gets its own chance."""
    if not isinstance(params.generator, torch.Generator):
        params.generator = torch.Generator(device=device)
        params.generator.seed()
    found: torch.Generator = params.generator
    return found
