"""Engine requests: the SDE window, the fields to return, the prompt text and the random generator of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from verl_omni.algos import window
from verl_omni.algos.sde_settings import SdeSettings
from verl_omni.pipelines.sde_sampler import Window
from verl_omni.utils.seeds import hashed_seed


@dataclass(frozen=True, slots=True)
class RequestedFields:
    """Fields returned with a sample; the sample itself does not depend on them.

    Attributes:
        steps: latents and log-probabilities of the steps of the SDE window, for algorithms that compare likelihoods.
        clean_latents: final latents, for algorithms that add their own noise to them.
        version: version of the weights that generated the sample.
    """

    steps: bool = False
    clean_latents: bool = False
    version: bool = False


def requested_fields(extra: Mapping[str, Any]) -> RequestedFields:
    """Fields that the extra arguments of a request ask for: `logprobs`, `clean_latents`, `weights_version`."""
    return RequestedFields(
        steps=bool(extra.get("logprobs")),
        clean_latents=bool(extra.get("clean_latents")),
        version=bool(extra.get("weights_version")),
    )


def sde_window(extra: Mapping[str, Any], steps: int, seed: int) -> Window | None:
    """SDE window of a request, or None when every step follows the ODE.

    Args:
        extra: as `SdeSettings.read` takes it, and `finished_steps`, the number of training steps before the sample's
            own, which places a progressive window; without it `global_steps`, the version of the weights, which is the
            same unless samples are generated ahead.
        steps: number of denoising steps.
        seed: seed of the request's noise, which places a random window without `sde_window_seed`; with it, that and
            the finished steps do, so that all requests of a training step with the same one have one window.

    Raises:
        ValueError: the settings are unknown or contradict each other, the window does not fit into `steps`, or
            log-probabilities are wanted of a window of `cps` that holds the last step, where it adds no noise.
    """
    settings = SdeSettings.read(extra)
    if settings.noise_level <= 0:
        return None
    finished = extra.get("finished_steps")
    step = int(extra.get("global_steps") or 0) if finished is None else int(finished)
    if settings.window_seed is not None:
        seed = hashed_seed("window", settings.window_seed, step)
    chosen = window.place(settings, steps=steps, seed=seed, training_step=step)
    if settings.kind == "cps" and chosen[-1] == steps - 1 and requested_fields(extra).steps:
        raise ValueError(f"an SDE window of cps must not hold the last of {steps} steps, where it adds no noise")
    return Window(chosen, settings.noise_level, settings.kind, settings.contiguous)


def decode_token_ids(prompt: Any, tokenizer: Any) -> Any:
    """A copy of the prompt with its text, for a pipeline that tokenizes text itself.

    That is `prompt_text`, which has the user's case and spacing, and otherwise the text of the token ids.
    """
    if isinstance(prompt, str) or prompt.get("prompt"):
        return prompt
    decoded = dict(prompt)
    for ids, text, written in (
        ("prompt_token_ids", "prompt", "prompt_text"),
        ("negative_prompt_ids", "negative_prompt", "negative_prompt_text"),
    ):
        if prompt.get(written) is not None:
            decoded[text] = prompt[written]
        elif prompt.get(ids) is not None:
            decoded[text] = tokenizer.decode(list(prompt[ids]), skip_special_tokens=True)
    return decoded


def step_noise_seed(extra: Mapping[str, Any], generator: torch.Generator) -> int:
    """Seed of the noise after the initial one, which also places a random window: `sde_noise_seed`, or the request's.

    Args:
        generator: the request's generator. Its own initial seed is used, so that a request without a seed also gets
            its own window.
    """
    seed = extra.get("sde_noise_seed")
    return generator.initial_seed() if seed is None else int(seed)


def start_step_noise(extra: Mapping[str, Any], generator: torch.Generator) -> None:
    """After the initial noise has been drawn: let the noise of the steps begin at its own seed, if there is one."""
    if extra.get("sde_noise_seed") is not None:
        generator.manual_seed(int(extra["sde_noise_seed"]))


def request_generator(params: Any, device: torch.device) -> torch.Generator:
    """The request's random generator; a request without a seed gets a generator with a random one.

    Args:
        params: the engine's sampling parameters, whose `generator` the engine sets where a seed is given.
    """
    if not isinstance(params.generator, torch.Generator):
        params.generator = torch.Generator(device=device)
        params.generator.seed()
    generator: torch.Generator = params.generator
    return generator
