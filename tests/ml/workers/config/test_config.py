"""Typed settings: errors of refused values, modules that are imported, and what is read from the model's folder."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from verl.workers.config import CheckpointEngineConfig

from verl_omni.weight_sync.ipc import UPDATE_DEADLINE_SECONDS
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig
from verl_omni.workers.config import (
    DiffusionActorConfig,
    DiffusionLossConfig,
    DiffusionModelConfig,
    DiffusionRolloutAlgoConfig,
    DiffusionRolloutConfig,
)
from verl_omni.workers.rollout.network_settings import network_deadline

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"


@pytest.mark.parametrize(
    ("config", "settings", "error", "words"),
    [
        (DiffusionRolloutConfig, {"mode": "sync"}, ValueError, "'sync' is not supported"),
        (DiffusionRolloutConfig, {"rollout_adapter": "new"}, ValueError, "Invalid diffusion rollout rollout_adapter"),
        (DiffusionRolloutConfig, {"deadline_seconds": 0.0}, ValueError, "deadline_seconds: must be a positive number"),
        (
            DiffusionRolloutConfig,
            {"pipeline_model_parallel_size": 2},
            NotImplementedError,
            "pipeline_model_parallel_size must be 1",
        ),
        (DiffusionRolloutAlgoConfig, {"sample_strategy": "all"}, ValueError, "Unknown sample_strategy 'all'"),
        (
            DiffusionRolloutAlgoConfig,
            {"sample_strategy": "progressive", "iters_per_group": 0},
            ValueError,
            "iters_per_group must be positive",
        ),
        (
            DiffusionModelConfig,
            {"path": str(MODEL), "algorithm": "ppo"},
            ValueError,
            "no algorithm 'ppo'; one of awm, ",
        ),
        (
            DiffusionActorConfig,
            {"diffusion_loss": FlowGRPOLossConfig(), "strategy": "megatron"},
            ValueError,
            "Unknown strategy: 'megatron'",
        ),
        (DiffusionModelConfig, {"path": str(MODEL), "attn_backend": "fast"}, ValueError, "attn_backend: 'fast'"),
        (DiffusionModelConfig, {"path": str(MODEL), "target_modules": 3}, TypeError, "must be a string or a list"),
        (DiffusionModelConfig, {"path": str(MODEL), "target_modules": ["a", 3]}, TypeError, "or a list of strings"),
    ],
)
def test_what_is_refused(config: type, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        config(**settings)


@pytest.mark.parametrize(
    "name", ["max_model_len", "load_format", "engine_kwargs", "prompt_length", "expert_parallel_size"]
)
def test_mutable_settings_can_be_changed(name: str) -> None:
    config = DiffusionRolloutConfig()
    setattr(config, name, 1)
    assert getattr(config, name) == 1


def test_the_architecture_and_tokenizer_come_from_the_model_folder() -> None:
    config = DiffusionModelConfig(path=str(MODEL))
    assert config.architecture == "StableDiffusion3Pipeline"
    assert config.tokenizer_path == str(MODEL / "tokenizer")
    assert config.tokenizer("red")["input_ids"]
    assert config.processor is None


@pytest.mark.parametrize("targets", ["attn.*", ["to_q", "to_k"], None])
def test_target_modules_are_a_pattern_or_a_list(targets: Any) -> None:
    assert DiffusionModelConfig(path=str(MODEL), target_modules=targets).target_modules == targets


def test_the_tokenizer_may_be_in_the_model_folder_itself(tmp_path: Path) -> None:
    for file in (MODEL / "tokenizer").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model_index.json").write_text('{"_class_name": "Mine"}')
    config = DiffusionModelConfig(path=str(tmp_path))
    assert (config.architecture, config.tokenizer_path) == ("Mine", str(tmp_path))
    assert config.tokenizer("red")["input_ids"]


def test_the_error_names_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model_index\.json not found: model\.path must be a model"):
        DiffusionModelConfig(path=str(tmp_path))


@pytest.mark.parametrize(
    ("loss_mode", "settings", "type_name"),
    [
        ("flow_grpo", {"clip_ratio": 2e-4, "adv_clip_max": 4.0}, "FlowGRPOLossConfig"),
        ("grpo_guard", {"clip_ratio": 2e-6}, "GRPOGuardLossConfig"),
        ("diffusion_nft", {"mix_beta": 0.2}, "DiffusionNFTLossConfig"),
        ("diffusion_dpo", {"dpo_beta": 100.0}, "DiffusionDPOLossConfig"),
    ],
)
def test_a_loss_config_has_the_settings_of_its_algorithm(
    loss_mode: str, settings: dict[str, float], type_name: str
) -> None:
    config = DiffusionLossConfig(loss_mode=loss_mode, **settings)
    assert type(config).__name__ == type_name and isinstance(config, DiffusionLossConfig)
    assert {name: getattr(config, name) for name in settings} == settings
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.loss_mode == loss_mode


def test_a_loss_config_without_arguments_is_that_of_flow_grpo() -> None:
    assert type(DiffusionLossConfig()).__name__ == "FlowGRPOLossConfig"
    with pytest.raises(TypeError, match="mix_beta"):
        DiffusionLossConfig(mix_beta=0.1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no algorithm 'ppo'; one of "):
        DiffusionLossConfig(loss_mode="ppo")


def test_the_deadlines_of_standalone_replicas_have_defaults() -> None:
    assert network_deadline(DiffusionRolloutConfig()) == UPDATE_DEADLINE_SECONDS
    engine = CheckpointEngineConfig(engine_kwargs={"omni_tcp": {"deadline_seconds": 7}})
    assert network_deadline(DiffusionRolloutConfig(checkpoint_engine=engine)) == 7


def test_every_process_with_the_model_imports_the_external_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("external_one", "external_two"):
        (tmp_path / f"{name}.py").write_text("")
    DiffusionModelConfig(path=str(MODEL), external_lib="external_one")
    assert "external_one" in sys.modules
    assert "external_two" not in sys.modules
    DiffusionModelConfig(path=str(MODEL), external_lib=["external_one", "external_two"])
    assert "external_two" in sys.modules
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        DiffusionModelConfig(path=str(MODEL), external_lib="no_such_library")
