"""Registration of a language model with vLLM-Omni's engine, as a pipeline of one autoregressive stage."""

from dataclasses import asdict
from typing import Any

from vllm_omni.config.config_factory import StageConfigFactory
from vllm_omni.config.pipeline_registry import register_pipeline
from vllm_omni.config.stage_config import PipelineConfig, StageExecutionType, StagePipelineConfig
from vllm_omni.engine.arg_utils import OmniEngineArgs

from verl_omni.platforms.server_profile import server_profile


def register_language_model(model: str, *, trust_remote_code: bool) -> None:
    """Register a language model, which the engine of this process would otherwise load as a diffusion model.

    A model for which vLLM-Omni has a pipeline keeps that pipeline.

    Args:
        model: folder in transformers' layout.

    Raises:
        ValueError: transformers cannot read the config, or it names no architecture.
    """
    if StageConfigFactory.get_pipeline_config(model, trust_remote_code) is not None:
        return
    config = StageConfigFactory.get_hf_config(model, trust_remote_code)
    architectures = getattr(config, "architectures", None)
    if config is None or not architectures:
        raise ValueError(f"{model} is not a language model: its config.json is missing or names no architecture")
    register_pipeline(
        PipelineConfig(
            model_type=config.model_type,
            model_arch=architectures[0],
            stages=(
                StagePipelineConfig(
                    stage_id=0,
                    model_stage="language_model",
                    execution_type=StageExecutionType.LLM_AR,
                    final_output=True,
                    final_output_type="text",
                    owns_tokenizer=True,
                    scheduler_cls=server_profile().language_model_scheduler,
                ),
            ),
        )
    )


def chosen_arguments(engine_args: OmniEngineArgs) -> dict[str, Any]:
    """Arguments of `AsyncOmni` that are not at their defaults: it refuses others that a stage does not read.

    Of nested settings also, because vLLM rejects some defaults: `cudagraph_capture_sizes` of its compilation config
    must not be None.
    """
    return _differing(asdict(engine_args), asdict(OmniEngineArgs(model=engine_args.model))) | {
        "model": engine_args.model
    }


def _differing(given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    differing = {}
    for name, value in given.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            value, default = _differing(value, default), {}
        if value == "" and default is None:  # vLLM's command line has an empty text where its arguments have None
            continue
        if name not in defaults or value != default:
            differing[name] = value
    return differing
