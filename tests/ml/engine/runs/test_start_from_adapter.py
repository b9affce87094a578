"""A run that continues from an adapter of peft on a model with weights of the variant fp16, and a run that goes on."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.ml.engine.shared_ray import SharedRay
from tests.ml.engine.small_run import small_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LAYERS = [f"transformer_blocks.{block}.attn.{name}" for block in (0, 1) for name in ("to_q", "to_out.0")]
RANK = 4
WIDTH = 32


def write_model(folder: Path) -> None:
    """A model whose weights have only the names of the variant, as `save_pretrained` writes them."""
    from diffusers import StableDiffusion3Pipeline

    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    make_tiny_sd3(folder / "plain")
    model = StableDiffusion3Pipeline.from_pretrained(folder / "plain", torch_dtype=torch.float16)
    model.save_pretrained(folder / "model", variant="fp16")
    assert not list((folder / "model").glob("*/model.safetensors"))


def write_adapter(folder: Path) -> dict[str, torch.Tensor]:
    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    shapes = {"lora_A": (RANK, WIDTH), "lora_B": (WIDTH, RANK)}
    values = {
        f"{layer}.{half}.weight": torch.randn(shape, generator=generator) / 3
        for layer in LAYERS
        for half, shape in shapes.items()
    }
    save_file(
        {f"base_model.model.{name}": value for name, value in values.items()}, folder / "adapter_model.safetensors"
    )
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["to_q", "to_out.0"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return values


def train(shared_ray: SharedRay, folder: Path, adapter: Path, run: Path) -> None:
    (folder / "prompts.txt").write_text("a red wall\na blue door\n")
    shared_ray.train(
        [
            *small_run(folder / "model"),
            f"actor_rollout_ref.model.lora_adapter_path='{adapter}'",
            f"data.train_files='{folder / 'prompts.txt'}'",
            "trainer.total_training_steps=1",
            f"trainer.default_local_dir='{run}'",
            "trainer.save_freq=1",
            "trainer.adapter_save_freq=1",
            "actor_rollout_ref.actor.optim.lr=1e-9",
        ]
    )


def test_the_engine_samples_with_the_adapter_from_the_first_sample_on(shared_ray: SharedRay, tmp_path: Path) -> None:
    """The trainer refuses samples whose log-probabilities differ from the trained model's."""
    write_model(tmp_path)
    before = write_adapter(tmp_path / "sft")
    adapter = tmp_path / "sft"
    for run in (tmp_path / "first", tmp_path / "second"):
        train(shared_ray, tmp_path, adapter, run)
        (line,) = [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["step"]]
        assert line["weights/version"] == 1 and line["actor/optimizer_steps"] > 0
        adapter = run / "adapters" / "step_000001" / "lora"  # the next run starts from it
        in_checkpoint = run / "checkpoints" / "step_000001" / "lora"
        names = sorted(path.name for path in adapter.iterdir())
        assert names == sorted(path.name for path in in_checkpoint.iterdir())
        for name in [name for name in names if name.endswith(".safetensors")]:  # their metadata has no order
            saved = load_file(adapter / name)
            kept = load_file(in_checkpoint / name)
            assert saved.keys() == kept.keys() and all(torch.equal(saved[key], kept[key]) for key in kept)
        after = load_file(adapter / "adapter_model.safetensors")
        for name, value in before.items():
            torch.testing.assert_close(after[f"base_model.model.{name}"], value, atol=1e-6, rtol=0)
