"""A plain language model as vLLM-Omni's engine knows models: a pipeline, here of one stage, which makes tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vllm_omni.config.config_factory import StageConfigFactory
from vllm_omni.config.pipeline_registry import register_pipeline
from vllm_omni.config.stage_config import PipelineConfig, StageExecutionType, StagePipelineConfig
from vllm_omni.engine.arg_utils import OmniEngineArgs

from verl_omni.platforms.server_profile import server_profile


def register_language_model(model: str, *, trust_remote_code: bool) -> None:
    """Let this process's engine serve a language model, which it would take for a diffusion model.

    A model that vLLM-Omni has a pipeline for keeps that.

    Args:
        model: folder in transformers' layout.

    Raises:
        ValueError: transformers cannot read its settings, or they name no architecture.
    """
    if StageConfigFactory.get_pipeline_config(model, trust_remote_code) is not None:
        return
    config = StageConfigFactory.get_hf_config(model, trust_remote_code)
    architectures = getattr(config, "architectures", None)
    if config is None or not architectures:
        raise ValueError(f"{model} is no language model: its config.json is missing, or names no architecture")
    register_pipeline(
        PipelineConfig(
            model_type=config.model_type,
            model_arch=architectures[0],
            stages=(
                StagePipelineConfig(
                    stage_id=0, model_stage="language_model", execution_type=StageExecutionType.LLM_AR,
                    final_output=True, final_output_type="text", owns_tokenizer=True,
                    scheduler_cls=server_profile().language_model_scheduler,
                ),
            ),
        )
    )  # fmt: skip


def drop_default_settings(engine_args: dict[str, Any]) -> None:
    """Drop from `asdict(OmniEngineArgs)`, in place, the settings inside settings that nobody chose.

    vLLM does not take all of its own defaults back: `cudagraph_capture_sizes` of its compilation must not be None.
    """
    plain = asdict(OmniEngineArgs(model=engine_args["model"]))
    for name, default in plain.items():
        if isinstance(default, dict) and isinstance(given := engine_args[name], dict):
            chosen = {key: value for key, value in given.items() if key not in default or value != default[key]}
            if chosen:
                engine_args[name] = chosen
            else:
                del engine_args[name]
