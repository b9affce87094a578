"""Registration of a language model with vLLM-Omni's engine."""

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

    registered: dict[str, Any] = dict(pipeline_registry.OMNI_PIPELINES)
    monkeypatch.setattr(pipeline_registry, "OMNI_PIPELINES", registered)
    monkeypatch.setattr(config_factory, "OMNI_PIPELINES", registered)
    return registered


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
