"""`LanguageModelMode`: tokens from a language model of vLLM in vLLM-Omni's engine."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import TokenOutput

from verl_omni.compat import stage_lora
from verl_omni.weight_sync.errors import WeightSyncError
from verl_omni.workers.config import DiffusionRolloutConfig
from verl_omni.workers.rollout.vllm_rollout.language_model import token_requests
from verl_omni.workers.rollout.vllm_rollout.server.model_mode import ModelMode, Params
from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest


class LanguageModelMode(ModelMode):
    """A language model has a key-value cache, and its worker does not report which weights an output is from."""

    def __init__(self) -> None:
        self._in_flight = 0

    @override
    def load_model_config(self, config: Any) -> HFModelConfig:
        return omega_conf_to_dataclass(config, HFModelConfig)

    @override
    def complete_rollout_config(self, config: DiffusionRolloutConfig) -> None:
        if config.max_model_len is None:
            config.max_model_len = config.prompt_length + config.response_length

    @override
    def generation_defaults(self, verl_defaults: dict[str, Any]) -> dict[str, Any]:
        return verl_defaults

    @override
    def drop_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        for name in ("output_mode", "custom_pipeline"):
            engine_kwargs.pop(name, None)

    @override
    def engine_args(
        self, args: argparse.Namespace, config: DiffusionRolloutConfig, model_config: Any
    ) -> dict[str, Any]:
        from vllm_omni.engine.arg_utils import OmniEngineArgs

        from verl_omni.workers.rollout.vllm_rollout.language_model import pipeline_stage

        engine_args = OmniEngineArgs.from_cli_args(args)
        pipeline_stage.register_language_model(engine_args.model, trust_remote_code=model_config.trust_remote_code)
        chosen = pipeline_stage.chosen_arguments(engine_args)
        stage_lora.apply(chosen)
        return chosen

    @override
    def engine_request(
        self, request: RolloutRequest, params: Params, lora: Any, config: Any, stage_defaults: Sequence[Any]
    ) -> dict[str, Any]:
        prompt = token_requests.token_prompt(request)
        sampling = token_requests.token_sampling_params(
            params,
            prompt_length=len(prompt["prompt_token_ids"]),
            max_model_len=config.max_model_len,
            response_length=config.response_length,
        )
        # The language model is the first stage; later stages keep their default parameters.
        return {"prompt": prompt, "sampling_params_list": [sampling, *stage_defaults[1:]], "lora_request": lora}

    @override
    def to_output(self, result: Any, params: Params, global_steps: int | None) -> TokenOutput:
        return token_requests.to_token_output(result, global_steps=global_steps)

    @override
    def aborted_output(self, params: Params, global_steps: int | None) -> TokenOutput:
        return token_requests.aborted_token_output(global_steps=global_steps)

    @override
    @contextmanager
    def hold_weights(self) -> Iterator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    @override
    def check_idle(self) -> None:
        if self._in_flight:
            raise WeightSyncError(
                f"{self._in_flight} requests are in flight: abort them or wait for them before the update"
            )

    @override
    async def clear_cache(self, engine: Any) -> None:
        # Unlike `reset_prefix_cache`, it also clears what encoders computed from pictures.
        await engine.pause_generation(mode="keep", clear_cache=True)

    @override
    async def resume_engine(self, engine: Any) -> None:
        await engine.resume_generation()
