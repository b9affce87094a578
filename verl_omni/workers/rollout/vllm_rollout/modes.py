"""What a server that draws and one that writes do differently: `engine_kwargs.vllm_omni.output_mode`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import TokenOutput

from verl_omni.pipelines.registry import POST_PROCESS, rollout_family
from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.vllm_rollout import autoregressive, outputs, requests

EXTENSION = "verl_omni.workers.rollout.vllm_rollout.utils.vLLMOmniColocateWorkerExtension"
TOKEN_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.token_worker.TokenWorkerExtension"
NPU_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.npu_utils.vLLMOmniNPUColocateWorkerExtension"

Params = Mapping[str, Any]


class Mode(Protocol):
    """One kind of model behind a server."""

    language_model: bool  # by vLLM's engine, with a scheduler and a key-value cache
    npu_extension: str
    ignored_engine_kwargs: tuple[str, ...]  # settings of the other mode

    def model_config(self, given: Any) -> Any:
        """The typed settings of the model."""

    def fit(self, config: DiffusionRolloutConfig) -> None:
        """Fill in what the rollout's settings left open."""

    def generation_config(self, verls: dict[str, Any]) -> dict[str, Any]:
        """Defaults of sampling, given those that verl would set."""

    def prepare(self, engine_args: dict[str, Any], config: DiffusionRolloutConfig, model_config: Any) -> None:
        """Complete the engine's arguments in place."""

    def arguments(
        self, asked: requests.Asked, params: Params, lora: Any, config: Any, defaults: Sequence[Any]
    ) -> dict[str, Any]:
        """Arguments of `AsyncOmni.generate`; `defaults` are its parameters for each stage."""

    def output(self, result: Any, params: Params, global_steps: int | None) -> DiffusionOutput | TokenOutput:
        """What the agent loop is given."""

    def aborted(self, params: Params, global_steps: int | None) -> DiffusionOutput | TokenOutput:
        """The same for a request that never reached the engine."""


class DiffusionMode(Mode):
    """Images and videos, by a pipeline of `verl_omni.pipelines`."""

    language_model = False
    npu_extension = NPU_EXTENSION
    ignored_engine_kwargs = ()

    @override
    def model_config(self, given: Any) -> DiffusionModelConfig:
        return omega_conf_to_dataclass(given)

    @override
    def fit(self, config: DiffusionRolloutConfig) -> None:
        """Nothing is open."""

    @override
    def generation_config(self, verls: dict[str, Any]) -> dict[str, Any]:
        return {}

    @override
    def prepare(self, engine_args: dict[str, Any], config: DiffusionRolloutConfig, model_config: Any) -> None:
        from vllm_omni.diffusion.registry import register_diffusion_model

        found = rollout_family(model_config.architecture, model_config.algorithm)
        # The engine looks up post-processing by architecture; the class itself travels to the workers by name.
        register_diffusion_model(
            model_config.architecture, found.engine_module, found.pipeline,
            pre_process_func_name=found.pre_process, post_process_func_name=POST_PROCESS,
        )  # fmt: skip
        engine_args["custom_pipeline_args"] = {"pipeline_class": found.pipeline_class}
        engine_args["step_execution"] = config.step_execution
        if all(engine_args.get(f"diffusion_attention_{given}") is None for given in ("config", "backend")):
            engine_args["diffusion_attention_config"] = {"default": {"backend": config.rollout_attn_backend}}
        if not config.step_execution and not _batches_requests(found.engine_module, found.pipeline):
            engine_args["max_num_seqs"] = 1

    @override
    def arguments(
        self, asked: requests.Asked, params: Params, lora: Any, config: Any, defaults: Sequence[Any]
    ) -> dict[str, Any]:
        made = requests.sampling_params(params)
        made.lora_request = lora
        return {
            "prompt": requests.prompt(asked, several_stages=len(defaults) > 1),
            "sampling_params_list": [*defaults[:-1], made],
        }

    @override
    def output(self, result: Any, params: Params, global_steps: int | None) -> DiffusionOutput:
        return outputs.diffusion_output(result, requests.wanted(params), global_steps=global_steps)

    @override
    def aborted(self, params: Params, global_steps: int | None) -> DiffusionOutput:
        return outputs.aborted(requests.wanted(params), global_steps=global_steps)


class AutoregressiveMode(Mode):
    """Tokens, by a language model of vLLM in vLLM-Omni's engine."""

    language_model = True
    npu_extension = EXTENSION
    ignored_engine_kwargs = ("custom_pipeline",)

    @override
    def model_config(self, given: Any) -> HFModelConfig:
        return omega_conf_to_dataclass(given, HFModelConfig)

    @override
    def fit(self, config: DiffusionRolloutConfig) -> None:
        if config.max_model_len is None:
            config.max_model_len = config.prompt_length + config.response_length

    @override
    def generation_config(self, verls: dict[str, Any]) -> dict[str, Any]:
        return verls

    @override
    def prepare(self, engine_args: dict[str, Any], config: DiffusionRolloutConfig, model_config: Any) -> None:
        from verl_omni.workers.rollout.vllm_rollout import language_stage

        language_stage.register(engine_args["model"], trust_remote_code=model_config.trust_remote_code)
        language_stage.leave_out_defaults(engine_args)
        # Programs know the server's extension by its name; vLLM's workers take only this one.
        engine_args["worker_extension_cls"] = TOKEN_EXTENSION

    @override
    def arguments(
        self, asked: requests.Asked, params: Params, lora: Any, config: Any, defaults: Sequence[Any]
    ) -> dict[str, Any]:
        prompt = autoregressive.prompt(asked)
        made = autoregressive.sampling_params(
            params, prompt_length=len(prompt["prompt_token_ids"]), max_model_len=config.max_model_len,
            response_length=config.response_length,
        )  # fmt: skip
        # The language model is the first stage; those behind it keep their own parameters.
        return {"prompt": prompt, "sampling_params_list": [made, *defaults[1:]], "lora_request": lora}

    @override
    def output(self, result: Any, params: Params, global_steps: int | None) -> TokenOutput:
        return autoregressive.token_output(result, global_steps=global_steps)

    @override
    def aborted(self, params: Params, global_steps: int | None) -> TokenOutput:
        return autoregressive.aborted(global_steps=global_steps)


def mode_of(config: DiffusionRolloutConfig) -> Mode:
    """The mode that `engine_kwargs.vllm_omni.output_mode` names: `ar`, or nothing for diffusion.

    Raises:
        ValueError: it is neither.
    """
    named = ((config.engine_kwargs or {}).get("vllm_omni") or {}).get("output_mode")
    if named not in ("ar", "diffusion", None):
        raise ValueError(f"Unknown engine_kwargs.vllm_omni.output_mode: {named!r}; one of ['ar', 'diffusion']")
    return AutoregressiveMode() if named == "ar" else DiffusionMode()


def _batches_requests(module: str, pipeline: str) -> bool:
    return bool(getattr(getattr(importlib.import_module(module), pipeline), "supports_request_batch", False))
