"""Transformers in diffusers' format, from checkpoints of all weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from ml.workers.actor import test_experts
from ml.workers.actor.test_actor import batch, make
from ml.workers.tiny_actor import SAMPLER
from verl_omni.models.tiny import MAKERS
from verl_omni.trainer.output import trained_model
from verl_omni.trainer.run import checkpoint_origin, checkpoints
from verl_omni.workers.actor.shard_loading import FILE

pytestmark = pytest.mark.slow  # trains


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    MAKERS["sd3"](folder, 0)
    return folder


def saved(folder: Path, actor: Any, model: Path | None) -> Path:
    """A checkpoint of an actor, with the settings that name its model if it is given."""

    def write(path: Path) -> None:
        actor.stage(path)()
        if model is not None:
            config = OmegaConf.create(
                {"actor_rollout_ref": {"model": {"path": str(model)}}, "data": {"train_files": []}}
            )
            for name, text in checkpoint_origin.of_run(config).files().items():
                (path / name).write_text(text)

    return checkpoints.save(folder / "checkpoints", 3, write, keep=0, run=1)


@pytest.mark.parametrize("average", [False, True])
def test_diffusers_loads_what_was_trained(model_folder: Path, tmp_path: Path, average: bool) -> None:
    from diffusers import SD3Transformer2DModel

    actor = make(model_folder, rank=0, ema_decay=0.5)
    actor.update(batch(actor), **SAMPLER)
    checkpoint = saved(tmp_path, actor, model_folder)
    arguments = [str(checkpoint), "--out", str(tmp_path / "out"), "--dtype", "float32"]
    assert trained_model.main([*arguments, *["--average"] * average]) == 0
    loaded = SD3Transformer2DModel.from_pretrained(tmp_path / "out" / "transformer").state_dict()
    expected = dict(actor.weights("full", "average" if average else "default"))
    assert expected and all(torch.equal(loaded[name.removeprefix("transformer.")], expected[name]) for name in expected)
    untrained = SD3Transformer2DModel.from_pretrained(model_folder / "transformer").state_dict()
    assert loaded.keys() == untrained.keys(), "with its buffers"
    assert any(not torch.equal(loaded[name], untrained[name]) for name in loaded)


def test_both_transformers_of_wan_a14b_are_written(tmp_path: Path) -> None:
    from diffusers import WanTransformer3DModel

    MAKERS["wan_a14b"](tmp_path / "model", 0)
    actor = test_experts.make(tmp_path / "model", rank=0)
    with torch.no_grad():
        for number, parameter in enumerate(actor.trained):
            parameter.add_(number)
    checkpoint = saved(tmp_path, actor, None)
    model = tmp_path / "model"
    written = trained_model.export(checkpoint, tmp_path / "out", model=model, average=False, dtype="float32")
    assert [folder.name for folder in written] == ["transformer", "transformer_2"]
    exported = {
        f"{folder.name}.{name}": value
        for folder in written
        for name, value in WanTransformer3DModel.from_pretrained(folder).state_dict().items()
    }
    expected = dict(actor.weights("full"))
    assert all(torch.equal(exported[name], value) for name, value in expected.items()) and len(expected) > 20
    half, _ = trained_model.export(checkpoint, tmp_path / "half", model=model, average=False, dtype="bfloat16")
    dtypes = {name: value.dtype for name, value in load_file(half / FILE).items()}
    assert dtypes["blocks.0.attn1.to_q.weight"] == torch.bfloat16
    assert dtypes["blocks.0.scale_shift_table"] == torch.float32, "as the model keeps it"


def test_what_has_no_trained_model_is_refused(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(checkpoint: Path, *more: str) -> str:
        assert trained_model.main([str(checkpoint), "--out", str(tmp_path / "out"), *more]) == 1
        return capsys.readouterr().err

    adapter = saved(tmp_path / "adapter", make(model_folder), model_folder)
    assert f"is of an adapter: {adapter / 'lora'} is in diffusers' format" in error(adapter)
    assert "has no average of the weights: actor.ema_decay was not set" in error(adapter, "--average")
    unnamed = saved(tmp_path / "unnamed", make(model_folder, rank=0), None)
    assert "does not name its model; write --model" in error(unnamed)
    assert "does not exist; write --model" in error(unnamed, "--model", str(tmp_path))
    MAKERS["qwen_image"](tmp_path / "other", 0)
    assert "was not trained from" in error(unnamed, "--model", str(tmp_path / "other"))
    assert "would be lost; write another --out" in error(unnamed, "--model", str(tmp_path / "other" / ".." / "out"))
    assert "no checkpoint" in error(tmp_path / "step_000009")
    assert not (tmp_path / "out").exists()
