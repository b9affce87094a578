"""A model with two transformers, one for each part of the noise levels (Wan 2.2 A14B), in the trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ml.workers.tiny_actor import (
    SAMPLER,
    make_actor,
    model_settings,
    relative_difference,
    smooth_steps,
    weights_of,
)
from verl_omni.workers.actor import parallel
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.actor.experts import Experts

ROWS = 4
BOUNDARY = 875.0
CASES = {"adapters": 4, "all weights": 0}  # ranks of the adapters
# Timesteps of the two recorded steps of each row. With 2 ranks, the first one has rows of high noise only.
MIXED = torch.tensor([[950.0, 900.0], [940.0, 880.0], [870.0, 600.0], [800.0, 500.0]])
HIGH = torch.tensor([[950.0, 900.0], [940.0, 880.0], [930.0, 890.0], [950.0, 875.0]])
CROSSING = torch.tensor([[950.0, 600.0]] * ROWS)  # no rank needs the first one in the last pass
# advantages
ALL = (-1.0, 1.0, 1.0, -1.0)
FIRST_HALF = (-1.0, 1.0, 0.0, 0.0)


class Scaled(nn.Module):
    """Predicts its inputs times a number, and counts its rows."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.rows = 0

    def forward(self, *, timestep: Tensor, hidden_states: Tensor, encoder_hidden_states: Tensor) -> tuple[Tensor]:
        self.rows += len(timestep)
        assert len(timestep) == len(hidden_states) == len(encoder_hidden_states)
        return (self.factor * hidden_states + encoder_hidden_states,)


@pytest.mark.parametrize("times", [[900, 100, 875, 874.9], [900.0] * 4, [1.0] * 4], ids=str)
def test_each_row_is_computed_by_the_transformer_of_its_noise_level(times: list[float]) -> None:
    both = {"transformer": Scaled(2.0), "transformer_2": Scaled(3.0)}
    x = torch.arange(ROWS, dtype=torch.float32)[:, None] + 1
    timestep = torch.tensor(times)
    (velocity,) = Experts(both, BOUNDARY, shared=False)(
        timestep=timestep, hidden_states=x, encoder_hidden_states=10 * x
    )
    factor = torch.where(timestep >= BOUNDARY, 2.0, 3.0)[:, None]
    assert torch.equal(velocity, factor * x + 10 * x)
    high = int((timestep >= BOUNDARY).sum())
    assert [expert.rows for expert in both.values()] == [high, ROWS - high]


def make(folder: Path, rank: int = 4, mesh: Any = None) -> DiffusionActor:
    model = model_settings(
        folder, ["attn1.to_q", "attn2.to_v"], rank=rank, architecture="WanPipeline", checkpointing=True
    )
    return make_actor(
        model,
        samples=1,
        mesh=mesh,
        ppo_mini_batch_size=ROWS,
        ppo_micro_batch_size_per_gpu=2,
        optim=smooth_steps(lr=0.1 if rank else 1e-3),
        shuffle=False,
    )


def batch(timesteps: Tensor, advantages: tuple[float, ...] = ALL) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    levels = torch.cat([timesteps / 1000, timesteps[:, -1:] / 1000 - 0.1], dim=1)
    return {
        "all_latents": torch.randn(ROWS, 3, 4, 2, 8, 8, generator=generator),
        "all_timesteps": timesteps,
        "all_sigmas": levels,
        "sigma_max": torch.full((ROWS, 1), 0.96),
        "prompt_embeds": torch.randn(ROWS, 8, 32, generator=generator),
        "advantages": torch.tensor(advantages),
        # So that the ratio is far inside the clip range, where the loss is smooth.
        "rollout_log_probs": torch.full((ROWS, 2), -10.0),
    }


def updated(actor: DiffusionActor, share: slice) -> dict[str, Any]:
    """Updates with rows of both, whose steps cross the boundary, of high noise only, and of which only those learn."""
    norms = []
    weights = [weights_of(actor)]
    for times, advantages in ((MIXED, ALL), (CROSSING, ALL), (HIGH, ALL), (MIXED, FIRST_HALF)):
        rows = {name: tensor[share] for name, tensor in batch(times, advantages).items()}
        norms.append(actor.update(rows, **SAMPLER)["actor/grad_norm"])
        weights.append(weights_of(actor))
    return {"norms": norms, "weights": weights}


@pytest.fixture(scope="module")
def experts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from verl_omni.models.tiny import MAKERS

    folder = tmp_path_factory.mktemp("experts") / "wan_a14b"
    MAKERS["wan_a14b"](folder)
    return folder


def of(component: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(f"{component}.")}


@pytest.mark.slow
def test_an_update_trains_the_transformers_whose_steps_it_has(experts_folder: Path, tmp_path: Path) -> None:
    """Also in a run that resumes from a checkpoint before the second one had a step."""
    actor = make(experts_folder)
    start = weights_of(actor)
    halves = [of(component, start) for component in ("transformer", "transformer_2")]
    assert [len(half) for half in halves] == [8, 8] and sum(map(len, halves)) == len(start)
    actor.update(batch(HIGH), **SAMPLER)
    after = weights_of(actor)
    changed = {name for name, tensor in after.items() if "lora_B" in name and not torch.equal(tensor, start[name])}
    assert changed == {name for name in of("transformer", start) if "lora_B" in name}
    actor.save(tmp_path / "state")
    actor.update(batch(MIXED), **SAMPLER)
    resumed = make(experts_folder)
    resumed.load(tmp_path / "state")
    resumed.update(batch(MIXED), **SAMPLER)
    end = dict(resumed.weights("lora"))
    assert all(torch.equal(tensor, end[name]) for name, tensor in actor.weights("lora"))
    assert any(not torch.equal(tensor, after[name]) for name, tensor in of("transformer_2", end).items())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_transformer_without_rows_keeps_its_weights(experts_folder: Path, name: str) -> None:
    """Neither the momentum of earlier steps nor weight decay moves it."""
    actor = make(experts_folder, CASES[name])
    for times, moved in ((HIGH, False), (MIXED, True), (HIGH, False), (HIGH, False)):
        before = weights_of(actor)
        actor.update(batch(times), **SAMPLER)
        after = weights_of(actor)
        changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
        assert any(name in changed for name in of("transformer", after))
        assert any(name in changed for name in of("transformer_2", after)) == moved


@pytest.mark.slow
def test_diffusers_loads_the_adapter_of_each(experts_folder: Path, tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    actor = make(experts_folder)
    actor.update(batch(MIXED), **SAMPLER)
    actor.save_adapter(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(experts_folder)
    pipeline.load_lora_weights(tmp_path, adapter_name="default")
    pipeline.load_lora_weights(tmp_path / "transformer_2", adapter_name="default", load_into_transformer_2=True)
    data = batch(MIXED)
    for component, row in (("transformer", 0), ("transformer_2", 2)):
        inputs = {
            "hidden_states": data["all_latents"][row : row + 1, 0],
            "timestep": MIXED[row : row + 1, 0],
            "encoder_hidden_states": data["prompt_embeds"][row : row + 1],
            "return_dict": False,
        }
        with torch.no_grad():
            ours = actor.module(**inputs)[0]
            theirs = getattr(pipeline, component)(**inputs)[0]
            with actor.policy.as_base():
                base = actor.module(**inputs)[0]
        torch.testing.assert_close(ours, theirs, msg=component)
        assert not torch.allclose(ours, base, atol=1e-5)


def find(rank: int, ranks: int, folder: Path, kind: str) -> dict[str, Any]:
    """The updates of all cases."""
    rows = ROWS // ranks
    mesh = parallel.make_mesh(kind, ranks, -1)
    share = slice(rank * rows, (rank + 1) * rows)
    return {name: updated(make(folder, adapter, mesh), share) for name, adapter in CASES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_rank_with_fsdp2_gives_the_update_of_one_process(experts_folder: Path, name: str) -> None:
    """Mixed precision shards over one rank; here in float32, so that results are comparable."""
    mesh = parallel.mesh_of_one(torch.device("cpu"))
    check_equal(*(updated(make(experts_folder, CASES[name], device_mesh), slice(ROWS)) for device_mesh in (None, mesh)))


def check_equal(alone: dict[str, Any], found: dict[str, Any]) -> None:
    assert found["norms"] == pytest.approx(alone["norms"], rel=1e-3)
    before = alone["weights"][0]
    for expected, weight in zip(alone["weights"][1:], found["weights"][1:], strict=True):
        assert relative_difference(before, expected, weight) < 1e-3


@pytest.mark.slow
def test_ranks_with_rows_of_different_transformers_give_the_update_of_one_process(
    experts_folder: Path, run_ranks: Any
) -> None:
    updates, _ = run_ranks(__file__, 2, experts_folder)
    for name, adapter in CASES.items():
        check_equal(updated(make(experts_folder, adapter), slice(ROWS)), updates[name])
