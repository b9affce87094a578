"""Objectives of DiffusionNFT and DiffusionDPO on a tiny model: gradients, old policy, checkpoints."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ml.workers.tiny_actor import TARGETS, make_actor, model_settings, weights_of
from verl_omni.algos import flow_matching
from verl_omni.trainer.metrics import policy_drift, step_metrics
from verl_omni.utils.sample_store import SharedRows
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.algorithms.base import training_algorithm
from verl_omni.workers.algorithms.diffusion_dpo import DiffusionDPOLossConfig
from verl_omni.workers.algorithms.diffusion_nft import DiffusionNFTLossConfig, NFTObjective
from verl_omni.workers.config import DiffusionOptimizerConfig

pytestmark = pytest.mark.slow

NFT = DiffusionNFTLossConfig(mix_beta=1.0, draws=2, old_decay_rate=0.25, old_decay_max=0.5)
DPO = DiffusionDPOLossConfig(dpo_beta=100.0, draws=2)
BOTH = ("default", "old")


def make(folder: Path, *, rank: int = 4, adapters: Sequence[str] = ("default",), **changes: Any) -> DiffusionActor:
    return make_actor(model_settings(folder, TARGETS, rank=rank, adapters=adapters), **changes)


def clean(rows: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "clean_latents": torch.randn(rows, 16, 8, 8, generator=generator),
        "prompt_embeds": torch.randn(rows, 8, 64, generator=generator),
        "pooled_prompt_embeds": torch.randn(rows, 64, generator=generator),
    }


def judged(rows: int = 4) -> dict[str, torch.Tensor]:
    """Samples for DiffusionNFT: good and bad ones in turn."""
    good = torch.tensor([1.0, 0.0] * rows)[:rows]
    return {**clean(rows), "optimality": good, "draw_seeds": torch.arange(rows)}


def compared(pairs: int = 2) -> dict[str, torch.Tensor]:
    """Pairs for DPO: the better sample first, both of one prompt."""
    pairs_of = {name: value.reshape(pairs, 2, *value.shape[1:]) for name, value in clean(2 * pairs).items()}
    for name in ("prompt_embeds", "pooled_prompt_embeds"):
        pairs_of[name] = pairs_of[name][:, :1].expand_as(pairs_of[name]).contiguous()
    return {**pairs_of, "preferred": torch.ones(pairs), "draw_seeds": torch.arange(pairs)}


def errors(actor: DiffusionActor, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """Flow-matching error of each sample at noise levels and noise that no update used, [B]."""
    rows = len(data["clean_latents"])
    times, noise = flow_matching.draws(torch.arange(100, 100 + rows), 8, data["clean_latents"].shape[1:])
    errors_of_draws = []
    with torch.no_grad():
        for draw in range(8):
            x, target = flow_matching.add_noise(data["clean_latents"], noise[:, draw], times[:, draw])
            errors_of_draws.append(flow_matching.error(actor.policy.velocity_at(data, x, times[:, draw]), target))
    return torch.stack(errors_of_draws).mean(0)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_nft_fits_good_samples_better_than_bad_ones(model_folder: Path) -> None:
    actor = make(model_folder, adapters=BOTH, diffusion_loss=NFT)
    data = judged()
    before = errors(actor, data)
    metrics = [actor.update(data, step=step) for step in range(1, 7)]
    gained = before - errors(actor, data)
    assert metrics[0]["actor/distance_to_old"] < 1e-12 < metrics[-1]["actor/distance_to_old"]
    assert gained[data["optimality"] == 1].mean() > gained[data["optimality"] == 0].mean() + 1e-3
    assert not {name for name in metrics[0] if name.startswith("rollout_corr/")}, "there are no likelihoods to compare"


@pytest.mark.parametrize(("rank", "rate", "pull"), [(4, 1e-2, 30.0), (0, 1e-4, 300.0)], ids=["adapter", "all weights"])
def test_the_reference_kl_of_nft_pulls_to_the_base_model(
    model_folder: Path, rank: int, rate: float, pull: float
) -> None:
    """Good samples alone: the policy moves away from the base model, less far with the pull."""
    far = {}
    for coefficient in (0.0, 1e-12, pull):
        changed = dataclasses.replace(NFT, ref_kl_coef=coefficient)
        optim = DiffusionOptimizerConfig(lr=rate)
        actor = make(model_folder, rank=rank, adapters=BOTH, diffusion_loss=changed, optim=optim)
        assert (actor.policy.base is not None) == (rank == 0 and coefficient > 0)
        metrics = [actor.update(judged() | {"optimality": torch.ones(4)}, step=step) for step in range(1, 7)]
        far[coefficient] = metrics[-1].get("actor/distance_to_base")
        assert metrics[0].get("actor/distance_to_base") == (0 if coefficient else None)
    assert far[0.0] is None, "without the pull the base model is not run"
    assert far[1e-12] > 2 * far[pull] > 0


LEVELS = torch.tensor([1.0, 0.9, 0.7, 0.4, 0.1])


def with_levels(rows: int = 4) -> dict[str, torch.Tensor]:
    """Samples for DiffusionNFT with the noise levels of their sampler."""
    return {**judged(rows), "sampler_levels": LEVELS.expand(rows, -1)}


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 5), (0.6, 3), (0.1, 1)])
def test_nft_takes_a_part_of_the_samplers_levels(fraction: float, count: int) -> None:
    policy: Any = SimpleNamespace(require_old=lambda: None)
    objective = NFTObjective(policy, NFT, step=1, timestep_fraction=fraction)
    batch = objective.prepare(with_levels(32))
    assert objective.term_count(batch) == count
    assert batch["times"].shape == (32, count) and batch["noise"].shape == (32, count, 16, 8, 8)
    known = set(LEVELS.tolist())
    assert all(set(row) <= known and len(set(row)) == count for row in batch["times"].tolist())
    assert set(batch["times"].flatten().tolist()) == known, "every level is drawn for some sample"
    part = {name: values[3:4] for name, values in with_levels(32).items()}
    assert torch.equal(objective.prepare(part)["times"], batch["times"][3:4]), "a row's levels depend on its seed alone"


def test_the_old_policy_follows_its_decay_schedule(model_folder: Path) -> None:
    actor = make(model_folder, adapters=BOTH, diffusion_loss=NFT)
    data = judged()
    start = weights_of(actor, "old")
    assert same(start, weights_of(actor))
    want = start
    for step, decay in ((1, 0.0), (2, 0.25), (3, 0.5), (4, 0.5)):
        actor.update(data, step=step)
        new = weights_of(actor)
        old = dict(actor.weights("lora", "old"))
        want = {name: decay * tensor + (1 - decay) * new[name] for name, tensor in want.items()}
        assert all(torch.allclose(old[name], tensor, atol=1e-6) for name, tensor in want.items())
        assert same(old, new) == (step == 1)


def test_the_old_policy_is_updated_in_every_second_step_by_a_schedule_of_the_reference(model_folder: Path) -> None:
    actor = make(model_folder, adapters=BOTH, diffusion_loss=NFT)
    for step in (1, 2, 3, 4):
        before = weights_of(actor, "old")
        actor.update(judged(), step=step, schedule="copy", interval=2)
        old = dict(actor.weights("lora", "old"))
        assert same(old, before) == (step % 2 == 1)
        assert same(old, weights_of(actor)) == (step % 2 == 0)


def test_running_as_the_old_policy_leaves_the_trained_one_unchanged(model_folder: Path) -> None:
    actor = make(model_folder, adapters=BOTH, diffusion_loss=NFT)
    data = judged()
    for step in (1, 2):
        actor.update(data, step=step)
    trained = errors(actor, data)
    new = weights_of(actor)
    with actor.policy.as_old():
        old = errors(actor, data)
    assert same(new, weights_of(actor)) and torch.equal(errors(actor, data), trained)
    assert not torch.equal(old, trained)
    with pytest.raises(ValueError, match="policy_state_adapters must have `old`"):
        make(model_folder, diffusion_loss=NFT).update(data, step=1)


def test_dpo_has_no_gradient_without_a_preference(model_folder: Path) -> None:
    actor = make(model_folder, diffusion_loss=DPO)
    metrics = actor.update(compared() | {"preferred": torch.zeros(2)})
    assert metrics["actor/grad_norm"] == 0 and metrics["actor/preferred_fraction"] == 0
    one_of_two = actor.update(compared() | {"preferred": torch.tensor([0.0, 1.0])})
    assert one_of_two["actor/grad_norm"] > 0 and one_of_two["actor/preferred_fraction"] == 0.5


def test_dpo_measures_the_pairs_with_a_preference_only(model_folder: Path) -> None:
    """Whatever mini-batches and ranks they are in."""
    algorithm = training_algorithm("diffusion_dpo")
    actor = make(model_folder, diffusion_loss=DPO, ppo_mini_batch_size=1)
    for _ in range(6):
        actor.update(compared())
    none, single = ({"preferred": torch.tensor([0.0, preferred])} for preferred in (0.0, 1.0))
    metrics = algorithm.metrics(actor.update(compared() | single))
    assert metrics["actor/accuracy"] == 1 and metrics["actor/preferred_fraction"] == 0.5
    ranks = [actor.update(compared() | tensors) for tensors in (none, single)]
    over_ranks = algorithm.metrics(step_metrics.over_ranks({name: [rank[name] for rank in ranks] for name in ranks[0]}))
    assert over_ranks["actor/accuracy"] == 1 and over_ranks["actor/preferred_fraction"] == 0.25
    alone = algorithm.metrics(ranks[1])
    measured = {"actor/accuracy", "actor/margin", "actor/distance_to_base"}
    assert measured & policy_drift.SIGNS.keys(), "offline pairs have no images of training that would show the damage"
    assert {name: over_ranks[name] for name in measured} == pytest.approx({name: alone[name] for name in measured})
    assert not measured & algorithm.metrics(ranks[0]).keys(), "there is nothing to measure"


def test_dpo_trains_when_both_samples_of_a_pair_are_the_same(model_folder: Path) -> None:
    """A prompt's samples may have equal rewards: ranks then load the sample once."""
    data = compared() | {"preferred": torch.tensor([0.0, 1.0])}
    same = torch.tensor([[0, 0], [2, 3]])
    stored = SharedRows(data["clean_latents"].flatten(0, 1), same)
    metrics = make(model_folder, diffusion_loss=DPO).update(data | {"clean_latents": stored})
    plain = data | {"clean_latents": data["clean_latents"].flatten(0, 1)[same]}
    assert metrics == make(model_folder, diffusion_loss=DPO).update(plain) and metrics["actor/grad_norm"] > 0


def test_a_loaded_checkpoint_resumes_bit_exactly_with_its_old_policy(model_folder: Path, tmp_path: Path) -> None:
    first = make(model_folder, adapters=BOTH, diffusion_loss=NFT)
    data = judged()
    for step in (1, 2):
        first.update(data, step=step)
    first.save(tmp_path / "state")
    two = make(model_folder, adapters=BOTH, diffusion_loss=NFT)
    two.load(tmp_path / "state")
    assert two.update(data, step=3) == first.update(data, step=3)
    for which in ("default", "old"):
        assert same(weights_of(first, which), weights_of(two, which))
    make(model_folder, diffusion_loss=DPO).save(tmp_path / "other")
    with pytest.raises(ValueError, match="no old policy"):
        two.load(tmp_path / "other")


def dpo_loss(actor: DiffusionActor, base: DiffusionActor, data: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Mean loss of pairs and draws, float64, from the velocities of two actors (arXiv:2311.12908, eq. 14).

    -log sigmoid(-beta / 2 ((e_w - e_w_base) - (e_l - e_l_base))), with e the mean squared error of the velocity.
    And the mean squared difference of the velocities.
    """
    losses = []
    distances = []
    times, noise = flow_matching.draws(data["draw_seeds"], DPO.draws, data["clean_latents"].shape[2:])
    for draw in range(DPO.draws):
        errors = []
        for sample in range(2):
            part = {name: data[name][:, sample] for name in ("prompt_embeds", "pooled_prompt_embeds")}
            x0 = data["clean_latents"][:, sample]
            time = times[:, draw]
            drawn = noise[:, draw]
            level = time[:, None, None, None]
            x = (1 - level) * x0 + level * drawn
            here = actor.policy.velocity_at(part, x, time).double()
            with torch.no_grad():
                there = base.policy.velocity_at(part, x, time).double()
            target = (drawn - x0).double()
            errors.append([(v - target).square().flatten(1).mean(1) for v in (here, there)])
            distances.append((here.detach() - there).square().mean())
        (better, better_base), (worse, worse_base) = errors
        inside = -DPO.dpo_beta / 2 * ((better - better_base) - (worse - worse_base))
        losses.append(-torch.nn.functional.logsigmoid(inside))
    return torch.stack(losses).mean(), torch.stack(distances).mean().item()


def test_dpo_of_all_weights_compares_with_the_weights_of_the_folder_also_after_a_resume(
    model_folder: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"rank": 0, "diffusion_loss": DPO, "optim": DiffusionOptimizerConfig(lr=1e-4)}
    data = compared()
    first = make(model_folder, **changes, grad_clip=1e9)
    at_start = first.update(data)
    assert at_start["actor/margin"] == at_start["actor/distance_to_base"] == 0
    first.save(tmp_path)
    actor = make(model_folder, **changes, grad_clip=1e9)
    actor.load(tmp_path)
    expected, distance = dpo_loss(actor, make(model_folder, **changes), data)
    expected.backward()
    norm = torch.cat([p.grad.flatten().double() for p in actor.trained if p.grad is not None]).norm()
    actor.optimizer.zero_grad()
    metrics = actor.update(data)
    assert metrics["actor/loss"] == pytest.approx(expected.item(), rel=1e-4) and metrics["actor/margin"] != 0
    assert metrics["actor/distance_to_base"] == pytest.approx(distance, rel=1e-4)
    assert metrics["actor/grad_norm"] == pytest.approx(norm.item(), rel=1e-3)


def test_a_comparison_with_a_base_that_is_not_kept_is_refused(model_folder: Path) -> None:
    with pytest.raises(ValueError, match="`compares_with_base` of the algorithm must be true"):
        make(model_folder, rank=0, adapters=BOTH, diffusion_loss=NFT).policy.as_base().__enter__()
