"""Sizes of the public models of `drl fit`, against the published ones."""

from pathlib import Path

import pytest
import torch

from verl_omni.pipelines.registry import training_adapter
from verl_omni.trainer.memory_estimate import model_shapes, public_models

ENCODERS = {
    "stabilityai/stable-diffusion-3.5-medium": 5.6,  # T5-XXL 4.8, CLIP 0.12 and 0.69
    "Qwen/Qwen-Image": 8.3,  # Qwen2.5-VL-7B
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": 5.7,  # UMT5-XXL
}


def billions(folder: Path, *components: str) -> float:
    """Parameters of components, without reading or allocating any."""
    model = model_shapes.read(folder)
    return sum(p.numel() for name in components for p in model.on_meta(name, torch.bfloat16).parameters()) / 1e9


@pytest.mark.slow
@pytest.mark.parametrize("model", public_models.MODELS)
def test_a_public_transformer_has_its_published_size(model: str, tmp_path: Path) -> None:
    public_models.write(model, tmp_path)
    assert round(billions(tmp_path, "transformer"), 1) == public_models.MODELS[model].billions


@pytest.mark.parametrize("model", ENCODERS)
def test_public_text_encoders_have_their_published_size(model: str, tmp_path: Path) -> None:
    public_models.write(model, tmp_path)
    assert round(billions(tmp_path, *model_shapes.read(tmp_path).text_encoders), 1) == ENCODERS[model]
    assert 0.05 < billions(tmp_path, "vae") < 0.15


@pytest.mark.slow
def test_the_default_adapter_of_sd35_medium_has_the_size_that_published_recipes_train(tmp_path: Path) -> None:
    """18.8 million parameters of rank 32: the attention projections of both streams."""
    model = "stabilityai/stable-diffusion-3.5-medium"
    public_models.write(model, tmp_path)
    module = model_shapes.read(tmp_path).on_meta("transformer", torch.bfloat16)
    targets = training_adapter("StableDiffusion3Pipeline").LORA_TARGETS
    adapted = [
        layer for name, layer in module.named_modules() if name.endswith(tuple(f".{target}" for target in targets))
    ]
    assert len(adapted) == 24 * 8 - 1, "the last layer gives no text to another"
    assert sum(32 * (layer.in_features + layer.out_features) for layer in adapted) == 18_776_064
