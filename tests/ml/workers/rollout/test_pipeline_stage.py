"""Registration of a language model with vLLM-Omni's engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the engine's modules take half a minute to import


def folder(at: Path, **settings: Any) -> str:
    """The part of a model that the engine reads."""
    at.mkdir()
    (at / "config.json").write_text(json.dumps(settings))
    return str(at)


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM-Omni's registered pipelines, restored after the test."""
    from vllm_omni.config import config_factory, pipeline_registry

    own: dict[str, Any] = dict(pipeline_registry.OMNI_PIPELINES)
    monkeypatch.setattr(pipeline_registry, "OMNI_PIPELINES", own)
    monkeypatch.setattr(config_factory, "OMNI_PIPELINES", own)
    return own


def test_a_language_model_becomes_one_autoregressive_stage(tmp_path: Path, pipelines: dict[str, Any]) -> None:
    from vllm_omni.config.stage_config import StageExecutionType

    from verl_omni.workers.rollout.vllm_rollout.language_model import pipeline_stage

    model = folder(tmp_path / "qwen2", model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    for _ in range(2):
        pipeline_stage.register_language_model(model, trust_remote_code=False)
        (stage,) = pipelines["qwen2"].stages
        assert pipelines["qwen2"].model_arch == "Qwen2ForCausalLM"
        assert (stage.execution_type, stage.final_output_type) == (StageExecutionType.LLM_AR, "text")
        assert stage.scheduler_cls.endswith(".OmniARScheduler"), "the CPU runner does not prepare steps ahead"


def test_a_model_with_its_own_pipeline_keeps_it(tmp_path: Path, pipelines: dict[str, Any]) -> None:
    from verl_omni.workers.rollout.vllm_rollout.language_model import pipeline_stage

    before = dict(pipelines)
    # Its model type is qwen2; only its architecture differs.
    model = folder(tmp_path / "audio", model_type="qwen2", architectures=["MiMoAudioModel"])
    pipeline_stage.register_language_model(model, trust_remote_code=False)
    assert pipelines == before


@pytest.mark.parametrize("settings", [{"model_type": "unheard-of"}, {}])
def test_other_models_are_refused(tmp_path: Path, pipelines: dict[str, Any], settings: dict[str, Any]) -> None:
    from verl_omni.workers.rollout.vllm_rollout.language_model import pipeline_stage

    model = folder(tmp_path / "nothing", **settings)
    with pytest.raises(
        ValueError, match=r"nothing is not a language model: its config\.json is missing or names no arch"
    ):
        pipeline_stage.register_language_model(model, trust_remote_code=False)


def test_arguments_at_their_defaults_are_not_passed(tmp_path: Path) -> None:
    """The engine refuses those of them that a stage does not read."""
    from vllm.config import CompilationConfig, CUDAGraphMode
    from vllm_omni.engine.arg_utils import OmniEngineArgs

    from verl_omni.workers.rollout.vllm_rollout.language_model import pipeline_stage

    model = folder(tmp_path / "qwen2", model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    compilation = CompilationConfig(cudagraph_mode=CUDAGraphMode.PIECEWISE)
    made = pipeline_stage.chosen_arguments(OmniEngineArgs(model=model, max_num_seqs=3, compilation_config=compilation))
    assert made == {
        "model": model,
        "max_num_seqs": 3,
        "compilation_config": {"cudagraph_mode": CUDAGraphMode.PIECEWISE},
    }


def test_lora_is_handed_to_the_stage_and_not_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.engine import stage_init_utils, stage_runtime

    from verl_omni.compat import stage_lora

    name = "build_engine_args_dict_from_omni_stage_config"
    monkeypatch.setattr(stage_runtime, name, None)
    monkeypatch.setattr(stage_init_utils, name, lambda stage: {"stage": stage})
    given = {"model": "m", "enable_lora": True, "max_lora_rank": 8}
    stage_lora.apply(given)
    assert given == {"model": "m"}
    assert getattr(stage_runtime, name)(1) == {"stage": 1, "enable_lora": True, "max_lora_rank": 8}
