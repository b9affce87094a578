"""Settings of prompt embeddings on disk, and of text encoders in CPU memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.trainer.settings import configuration
from verl_omni.workers.config import DiffusionRolloutConfig

ROLLOUT = "actor_rollout_ref.rollout"
CACHE = f"{ROLLOUT}.prompt_cache_dir"
OFFLOAD = f"{ROLLOUT}.offload_text_encoders=true"


def fitted(model: Path, *overrides: str, architecture: str = "StableDiffusion3Pipeline", gpu: bool = True) -> Any:
    (model / "model_index.json").write_text(json.dumps({"_class_name": architecture}))
    for part in ("transformer", "vae"):
        (model / part).mkdir(exist_ok=True)
    config = smallest_job.load(f"actor_rollout_ref.model.path='{model}'", *overrides)
    startup.fit_to_machine(config, gpu)
    return config.actor_rollout_ref.rollout


def test_the_folder_is_absolute_for_engines_with_other_working_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fitted(tmp_path, f"{CACHE}=cache").prompt_cache_dir == str(tmp_path / "cache")
    assert fitted(tmp_path).prompt_cache_dir is None
    with pytest.raises(ValueError, match=r"prompt_cache_dir: must be a folder of the engines' machines, not s3://b/c"):
        fitted(tmp_path, f"{CACHE}=s3://b/c")


@pytest.mark.parametrize("architecture", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"])
def test_embeddings_of_input_images_are_not_kept(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(ValueError, match=rf"prompt_cache_dir: prompt embeddings of {architecture} depend on more than"):
        fitted(tmp_path, f"{CACHE}=/cache", architecture=architecture)


def test_ranks_that_share_a_text_encoder_do_not_look_into_the_cache_alone(tmp_path: Path) -> None:
    """Those that find a prompt would not take part in the encoding of those that do not."""
    divided = (f"{CACHE}=/cache", f"{ROLLOUT}.tensor_model_parallel_size=2")
    (tmp_path / "transformer").mkdir()
    config = {"num_attention_heads": 4, "attention_head_dim": 8}
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"tensor_model_parallel_size=2, the accelerators of an engine share a text"):
        fitted(tmp_path, *divided, architecture="FluxPipeline")
    assert fitted(tmp_path, *divided, architecture="FluxPipeline", gpu=False).tensor_model_parallel_size == 1
    assert fitted(tmp_path, *divided).prompt_cache_dir == "/cache"


def test_text_encoders_are_offloaded_only_with_a_cache_and_by_one_setting(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"offload_text_encoders: every batch would move .* also set .*prompt_cache_dir"
    ):
        DiffusionRolloutConfig(offload_text_encoders=True)
    assert DiffusionRolloutConfig(offload_text_encoders=True, prompt_cache_dir="/cache").offload_text_encoders
    moved = f"{ROLLOUT}.engine_kwargs.vllm_omni.enable_cpu_offload=true"
    with pytest.raises(configuration.SettingsError, match=r"enable_cpu_offload: moves the text encoders too; write"):
        fitted(tmp_path, f"{CACHE}=/cache", OFFLOAD, moved, f"{ROLLOUT}.enable_sleep_mode=false")
