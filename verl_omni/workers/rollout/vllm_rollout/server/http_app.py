"""HTTP app of a server: vLLM-Omni's routes, served with the latest published weights."""

import argparse
import asyncio
import copy
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from verl.utils.device import get_device_name
from vllm_omni.errors import OmniClientError

from verl_omni.utils.adapter_folder import REFUSED, content_id
from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID
from verl_omni.utils.vllm_omni.client_errors import client_errors
from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
from verl_omni.workers.rollout.vllm_rollout.server.http_answer import AnswerMiddleware, current_answer
from verl_omni.workers.rollout.vllm_rollout.server.http_gate import HttpGate, NotServed
from verl_omni.workers.rollout.vllm_rollout.server.sampling_checks import check_sampling

# Any process that reaches them could wake an engine while the trainer uses its memory.
CONTROL_ROUTES = ("/v1/omni/sleep", "/v1/omni/wakeup")
# With a model that generates images or videos they answer with status 500.
TEXT_AND_AUDIO_ROUTES = ("/tokenize", "/detokenize", "/invocations", "/v1/audio/")


class Policy(NamedTuple):
    """Adapter and weight version that a request is generated with.

    Attributes:
        lora: LoRA request of the adapter; None without one.
        version: version of the weights; None before the first update.
    """

    lora: Any
    version: int | None


class PolicyEngine:
    """Proxy of the engine for the HTTP app: requests pass the gate, and one that names no adapter uses the policy's.

    Args:
        policy: context of one request, in which the weights do not change if the gate is closed before they do.
    """

    def __init__(self, engine: Any, policy: Callable[[], AbstractAsyncContextManager[Policy]], gate: HttpGate) -> None:
        self._engine = engine
        self._policy = policy
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, prompt: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """`AsyncOmni.generate`. Several samples of one prompt become one request each: sample i uses the seed plus i.

        A sleep or a weight update ends the request, which then starts again, unless it has had an output.

        Args:
            args, kwargs: passed to `_outputs`.

        Raises:
            NotServed: the request waited too long at the gate, or was ended and cannot start again.
            OmniClientError: a parameter of a diffusion model is invalid.
        """
        for params in _of_diffusion(kwargs.get("sampling_params_list")):
            _check(prompt, params)
        streamed = isinstance(prompt, AsyncGenerator)

        def outputs() -> AsyncIterator[Any]:
            # The engine may change what it is given.
            prompt_copy = prompt if streamed else copy.deepcopy(prompt)
            return self._outputs(prompt_copy, *copy.deepcopy(args), **copy.deepcopy(kwargs))

        try:
            async for output in self._gate.run(outputs, repeatable=not streamed):
                yield output
        except NotServed as error:
            if (answer := current_answer.get()) is not None:
                answer.refusal = str(error)
            raise

    async def _outputs(
        self,
        prompt: Any,
        sampling_params: Any = None,
        request_id: str = "",
        *,
        sampling_params_list: Sequence[Any] | None = None,
        lora_request: Any = None,
        session_id: str | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Outputs of the engine.

        Args:
            sampling_params: parameters of a language model, from routes of vLLM.
            sampling_params_list: one for each stage; diffusion stages have a field for the adapter.
            session_id: set by vLLM's routes and ignored, because vLLM-Omni's engine does not accept it.
        """
        async with self._policy() as policy:
            params = list(sampling_params_list or ())
            diffusion = _of_diffusion(sampling_params_list)
            for stage_params in diffusion:
                stage_params.lora_request = stage_params.lora_request or policy.lora
            if not diffusion:
                lora_request = lora_request or policy.lora
            count = getattr(params[-1], "num_outputs_per_prompt", 1) if params else 1
            if count > 1:
                outputs = self._generate_several(count, request_id, params, prompt=prompt, **kwargs)
            else:
                outputs = self._engine.generate(
                    prompt=prompt,
                    sampling_params=sampling_params,
                    request_id=request_id,
                    sampling_params_list=sampling_params_list,
                    lora_request=lora_request,
                    **kwargs,
                )
            try:
                async for output in outputs:
                    if (answer := current_answer.get()) is not None and policy.version is not None:
                        answer.versions.add(policy.version)
                    yield output
            except RuntimeError as error:  # the text is all that vLLM-Omni passes on of an error outside of a pipeline
                if REFUSED in str(error):
                    raise OmniClientError(str(error)) from error
                raise

    async def _generate_several(
        self, count: int, request_id: str, params: list[Any], **kwargs: Any
    ) -> AsyncIterator[Any]:
        """One output with the samples of `count` requests; the first failure cancels the others."""

        def generate_one(number: int) -> Any:
            params_of_sample = copy.deepcopy(params)
            params_of_sample[-1].num_outputs_per_prompt = 1
            if params_of_sample[-1].seed is not None:
                params_of_sample[-1].seed += number
            return last_output(
                self._engine.generate(
                    request_id=f"{request_id}-{number}", sampling_params_list=params_of_sample, **kwargs
                )
            )

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(generate_one(number)) for number in range(count)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        outputs = [task.result() for task in tasks]
        yield replace(outputs[0], images=[image for output in outputs for image in output.images])


def _of_diffusion(params: Sequence[Any] | None) -> list[Any]:
    """Parameters of diffusion stages: those that name an adapter."""
    return [stage_params for stage_params in params or () if hasattr(stage_params, "lora_request")]


def _check(prompt: Any, params: Any) -> None:
    with client_errors():
        for text in prompt.values() if isinstance(prompt, dict) else ():
            if isinstance(text, str):
                text.encode()  # JSON can have half a character, for which tokenizers fail
        check_sampling(params, device=get_device_name(), over_http=True)
        if params.lora_request is not None:
            _check_adapter(params.lora_request)


def _check_adapter(lora_request: Any) -> None:
    """Check that a request's adapter is a folder here; give it an id that changes with the folder's content.

    vLLM-Omni takes equal ids for the same adapter: it would serve the old one after the folder was saved again, and
    another folder's where a client gives both one id.
    """
    if lora_request.lora_int_id == VLLM_LORA_INT_ID:
        raise ValueError(f"the LoRA adapter id {VLLM_LORA_INT_ID} is reserved for the policy: choose another one")
    # Not the name of one on a hub: the engine would download it while other requests and the training wait.
    path = os.path.expanduser(lora_request.lora_path)  # leaves any text as it is that names no user's folder
    try:
        lora_request.lora_int_id = content_id(Path(path))
    except ValueError as error:
        raise ValueError(f"no LoRA adapter at {path!r} on the server's machine: {error}") from error
    lora_request.lora_path = path


async def build_http_app(engine: PolicyEngine, args: argparse.Namespace) -> Any:
    """Build vLLM's app with vLLM-Omni's routes (`/v1/images/generations` and others) first, and `/metrics`.

    It has none of `CONTROL_ROUTES`, and for a diffusion model none for texts and audio.
    """
    from vllm.entrypoints.launchers.app import build_app
    from vllm_omni.entrypoints.openai.api_server import omni_init_app_state, router
    from vllm_omni.entrypoints.openai.utils import is_single_stage_diffusion

    diffusion = is_single_stage_diffusion(engine)
    app = build_app(args, () if diffusion else tuple(await engine.get_supported_tasks()))
    left_out = CONTROL_ROUTES + (TEXT_AND_AUDIO_ROUTES if diffusion else ())
    upstream = list(app.router.routes)
    app.include_router(router)
    # The first matching route serves a request, and both have /health, /v1/models and /v1/chat/completions.
    ours = [route for route in app.router.routes if route not in upstream]
    app.router.routes[:] = [route for route in [*ours, *upstream] if not route.path.startswith(left_out)]
    # Not `add_middleware`: vLLM's app is built already, by its hooks for SageMaker.
    app.middleware_stack = AnswerMiddleware(app.middleware_stack or app.build_middleware_stack())
    await omni_init_app_state(engine, app.state, args)
    return app
