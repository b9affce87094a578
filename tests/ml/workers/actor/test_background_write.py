"""A checkpoint that is written while the training goes on: the state at the time of the save, and its errors."""

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ml.workers.tiny_actor import ADVANTAGES, SAMPLER, make_actor, model_settings, recorded_steps
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.actor.background_write import BackgroundWrite

pytestmark = pytest.mark.slow


def make(folder: Path, rank: int = 4) -> DiffusionActor:
    model = model_settings(folder, ["attn.to_q"], rank=rank, adapters=("default", "old"))
    return make_actor(model, samples=1, shuffle=True)


def batch() -> dict[str, torch.Tensor]:
    return {
        **recorded_steps(4, [0.9, 0.6]),
        "advantages": ADVANTAGES,
        "rollout_log_probs": torch.full((4, 1), -10.0),
    }


@pytest.mark.parametrize("rank", [4, 0], ids=["adapter", "all weights"])
def test_a_checkpoint_has_the_state_at_the_time_of_the_save(model_folder: Path, tmp_path: Path, rank: int) -> None:
    """Weights, optimizer, old policy and generators have moved on when the copy is written."""
    saving = make(model_folder, rank)
    data = batch()
    saving.update(data, **SAMPLER)
    write = saving.stage(tmp_path / "background")
    saving.save(tmp_path / "expected")
    saving.save_adapter(tmp_path / "expected-adapter")
    expected = saving.update(data, **SAMPLER)
    saving.policy.require_old().follow(saving.policy.trained, 0.5)
    torch.rand(3)
    write()
    two = make(model_folder, rank)
    three = make(model_folder, rank)
    two.load(tmp_path / "background" / "state")
    three.load(tmp_path / "expected")
    for name, parameter in three.policy.trained.items():
        assert torch.equal(two.policy.trained[name], parameter)
        assert torch.equal(two.policy.require_old().values[name], three.policy.require_old().values[name])
        assert not torch.equal(saving.policy.trained[name], parameter)
    assert two.update(data, **SAMPLER) == expected, "the optimizer state and the order of rows"
    adapter = tmp_path / "background" / "lora" / "pytorch_lora_weights.safetensors"
    assert adapter.exists() == (rank > 0)
    if rank:
        written = load_file(adapter)
        wanted = load_file(tmp_path / "expected-adapter" / adapter.name)
        assert written.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in written.items())


def test_a_write_does_not_hold_up_the_rank() -> None:
    writing = BackgroundWrite()
    go_on = threading.Event()
    writing.start(lambda: go_on.wait(60) and None)
    assert not writing.finish(wait_s=0.0)
    with pytest.raises(RuntimeError, match="not finished"):
        writing.start(lambda: None)
    go_on.set()
    assert writing.finish(wait_s=60.0)
    assert writing.finish(wait_s=0.0), "nothing to finish"


def test_the_error_of_a_write_is_raised_once(model_folder: Path, tmp_path: Path) -> None:
    """A full disk: the file of the rank's shards is one."""
    actor = make(model_folder)
    writing = BackgroundWrite()
    write = actor.stage(tmp_path / "step")
    (tmp_path / "step" / "state" / "__0_0.distcp").symlink_to("/dev/full")
    writing.start(write)
    with pytest.raises(OSError, match=r"rank 0 could not write its training state .*No space left on device"):
        writing.finish(wait_s=60.0)
    assert writing.finish(wait_s=0.0)
