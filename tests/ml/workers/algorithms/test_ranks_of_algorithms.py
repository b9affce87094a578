"""Every algorithm on 2 and 4 ranks (gloo): the updates and metrics of one process, and checkpoints for other ranks.

The ranks are forked from a process that has imported everything, and each runs this file.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ml.workers.tiny_actor import make_actor, model_settings, weights_of
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
from verl_omni.pipelines.wan.tiny_model import make_tiny_wan
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.update import rank_rows
from verl_omni.workers.actor import parallel
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.algorithms import reference_loss
from verl_omni.workers.algorithms.base import training_algorithm
from verl_omni.workers.algorithms.registered import ALGORITHMS
from verl_omni.workers.config import DiffusionFSDPConfig, DiffusionLossConfig, DiffusionOptimizerConfig

pytestmark = pytest.mark.slow

SD3 = "StableDiffusion3Pipeline"
WAN = "WanPipeline"
MAKERS = {SD3: make_tiny_sd3, WAN: make_tiny_wan}
# 12 rows, 4 of each prompt: 2 ranks share the second prompt. An update takes two optimizer steps, the second with fewer
# rows, in micro-batches that do not divide the rows of a rank.
SAMPLES = 4
MINI_BATCH = 2
MICRO_BATCH = 3
UPDATES = 2
WHOLE_LAYERS = {"reshard_after_forward": False}
COPIES = {"fsdp_size": 2}


class ReferenceLoss(reference_loss.DiffusionLossFn):
    """A loss in the reference's form, with a mean and a maximum."""

    def __call__(self, *, config: Any, model_output: Any, data: Any) -> Any:
        difference = model_output["log_probs"] - data["old_log_probs"]
        metrics = {"ratio_mean": difference.exp().mean(), "distance_max": difference.abs().max()}
        return reference_loss.DiffusionLossResult((-data["advantages"] * difference.exp()).mean(), metrics)


def likelihood(log_ratio: Tensor, advantages: Tensor, settings: Any) -> Tensor:
    """A loss of a user, also of rows without an advantage."""
    return (0.1 - advantages) * log_ratio.exp()


LOSSES = {"reference_form": ReferenceLoss, "function": likelihood}


@dataclass(frozen=True)
class Case:
    """An algorithm on some ranks.

    Attributes:
        adapter: rank of LoRA, which neither 2 nor 4 divides; 0: all weights are trained.
        estimator: of the advantages.
        request: arguments of the objective.
        fsdp: settings of the sharding on 2 ranks, and on 4 where they run it.
        own_loss: name in `LOSSES` of the policy loss.
        spoiled: row whose gradient is not finite.
        limits: metric that must be between 0 and 1 in some step, so that both sides of a limit are tested.
    """

    loss_mode: str
    adapter: int = 3
    estimator: str = "flow_grpo"
    loss: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    actor: dict[str, Any] = field(default_factory=dict)
    fsdp: tuple[dict[str, Any], ...] = ({},)
    scattered: bool = False
    model: str = SD3
    own_loss: str | None = None
    spoiled: int | None = None
    limits: str | None = None

    @property
    def on_recorded_steps(self) -> bool:
        return ALGORITHMS[self.loss_mode].on_recorded_steps

    @property
    def learning_rate(self) -> float:
        """Gradients of an adapter are small here, except with DPO."""
        return 0.2 if self.adapter and self.model == SD3 and self.loss_mode != "diffusion_dpo" else 5e-3


CLIP = {"clip_ratio": 5e-5}
TWO_AND_FOUR: tuple[dict[str, Any], ...] = ({}, {})
KL = {"use_kl_loss": True, "kl_loss_coef": 1e2}
AVERAGE = {"ema_decay": 0.75}
SHARED = {"ulysses_sequence_parallel_size": 2}
CASES = {
    "Flow-GRPO": Case("flow_grpo", loss=CLIP, actor=AVERAGE, limits="actor/clip_fraction"),
    "Flow-GRPO, all weights": Case("flow_grpo", 0, loss=CLIP, actor=AVERAGE, fsdp=({}, COPIES)),
    "Flow-GRPO with a KL": Case("flow_grpo", loss=CLIP, actor=KL, fsdp=(WHOLE_LAYERS, COPIES)),
    "DanceGRPO": Case("flow_grpo", 0, "dance_grpo", CLIP, {"sde_type": "dance_sde", "timestep_fraction": 0.5}),
    "MixGRPO": Case("flow_grpo", 3, "mix_grpo", CLIP, scattered=True),
    "cps, engine's log-probabilities": Case(
        "flow_grpo",
        0,
        loss={"clip_ratio": 0.03},
        request={"sde_type": "cps", "bypass_mode": True},
        limits="actor/clip_fraction",
    ),
    "GRPO-Guard": Case(
        "grpo_guard", loss={"clip_ratio": 2e-5}, actor=AVERAGE, fsdp=TWO_AND_FOUR, limits="actor/clip_fraction"
    ),
    "GRPO-Guard with a KL, all weights": Case("grpo_guard", 0, loss={"clip_ratio": 2e-5}, actor=KL),
    "Flow-DPPO, two epochs": Case(
        "flow_dppo", loss={"kl_mask_threshold": 1e-6}, actor={"ppo_epochs": 2}, limits="actor/clip_fraction"
    ),
    "Flow-DPPO, all weights": Case("flow_dppo", 0, loss={"kl_mask_threshold": 1e-6}, fsdp=(WHOLE_LAYERS, COPIES)),
    "importance weights of samples": Case(
        "flow_grpo", loss=CLIP, request={"rollout_is": "sequence", "rollout_is_threshold": 1.02}
    ),
    "importance weights of steps, rejected samples": Case(
        "flow_grpo",
        0,
        loss=CLIP,
        request={"rollout_is": "token", "rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.002},
        fsdp=TWO_AND_FOUR,
        limits="rollout_corr/rollout_rs_kept",
    ),
    "DiffusionNFT with a reference KL": Case(
        "diffusion_nft",
        loss={"draws": 2, "ref_kl_coef": 0.5, "old_decay_rate": 0.25},
        actor=AVERAGE,
        fsdp=(WHOLE_LAYERS, COPIES),
    ),
    "DiffusionNFT, all weights": Case(
        "diffusion_nft", 0, loss={"adaptive_weight_min": 0.5}, request={"timestep_fraction": 0.5}
    ),
    "DiffusionDPO": Case("diffusion_dpo", loss={"dpo_beta": 100.0, "draws": 2}, limits="actor/preferred_fraction"),
    "DiffusionDPO, all weights": Case("diffusion_dpo", 0, loss={"dpo_beta": 100.0, "draws": 2}, fsdp=TWO_AND_FOUR),
    "DiffusionNFT with a reference KL, all weights": Case(
        "diffusion_nft", 0, loss={"draws": 2, "ref_kl_coef": 0.5, "adaptive_weight_min": 0.5}
    ),
    "DiffusionDPO with whole layers": Case(
        "diffusion_dpo", loss={"dpo_beta": 100.0, "draws": 1}, actor=AVERAGE, fsdp=(WHOLE_LAYERS, COPIES)
    ),
    "a loss in the reference's form": Case("flow_grpo", 0, own_loss="reference_form", fsdp=TWO_AND_FOUR),
    "a loss of a function": Case("flow_grpo", own_loss="function"),
    "a gradient that is not finite": Case("flow_grpo", loss=CLIP, actor=AVERAGE, fsdp=TWO_AND_FOUR, spoiled=5),
    "Flow-GRPO of Wan, shared sequences": Case("flow_grpo", loss=CLIP, model=WAN, fsdp=(SHARED,)),
    "DiffusionDPO of Wan, shared sequences": Case(
        "diffusion_dpo", loss={"dpo_beta": 100.0, "draws": 2}, model=WAN, fsdp=(SHARED, SHARED)
    ),
    "DiffusionNFT of Wan, shared sequences": Case("diffusion_nft", 0, loss={"draws": 2}, model=WAN, fsdp=(SHARED,)),
}
_NAMED = {case.loss_mode for case in CASES.values()}
CASES |= {f"{name} with its defaults": Case(name) for name in ALGORITHMS if name not in _NAMED}
# 2 ranks write them after their updates, and 4 ranks and one process continue.
RESUMED = ("DiffusionNFT with a reference KL", "Flow-GRPO, all weights", "DiffusionDPO with whole layers")
# A margin is a difference of squared errors of about 2, of which float32 keeps 2e-7.
ROUNDING = {"actor/margin": 1e-6}
EVERY_POLICY = ("default", "old", "average")


def loss_of(case: Case) -> Any:
    return DiffusionLossConfig(loss_mode=case.loss_mode, **case.loss)


def make(folder: Path, case: Case, fsdp: dict[str, Any], micro_batch: int | None, mesh: Any = None) -> DiffusionActor:
    old = ("default", "old") if case.loss_mode == "diffusion_nft" else ("default",)
    model = model_settings(folder / case.model, rank=case.adapter, adapters=old, architecture=case.model)
    pairs = case.loss_mode == "diffusion_dpo"
    actor = make_actor(
        model,
        SAMPLES,
        mesh=mesh,
        diffusion_loss=loss_of(case),
        ppo_mini_batch_size=MINI_BATCH * (SAMPLES if pairs else 1),
        ppo_micro_batch_size_per_gpu=micro_batch,
        fsdp_config=DiffusionFSDPConfig(**fsdp),
        # With a large eps, steps are nearly proportional to the gradient: a factor of it shows.
        optim=DiffusionOptimizerConfig(
            lr=case.learning_rate, eps=1e-2, lr_warmup_steps=2, lr_scheduler_type="cosine", total_training_steps=12
        ),
        **case.actor,
    )
    if case.own_loss is not None:
        actor.algorithm = actor.algorithm.with_loss(LOSSES[case.own_loss])  # type: ignore[arg-type]
    return actor


def request_of(case: Case, step: int) -> dict[str, Any]:
    if case.on_recorded_steps:
        sampler = {"noise_level": 0.7, "sde_type": "sde", "velocity_tolerance": float("inf")}
        return {**sampler, **case.request}
    return {"step": step, **case.request} if case.loss_mode == "diffusion_nft" else {}


def policies(actor: DiffusionActor, case: Case) -> dict[str, Tensor]:
    """Unsharded weights of the trained policy and of its delayed copies."""
    kept = {"default": True, "old": actor.policy.old is not None, "average": actor.policy.average is not None}
    return {
        f"{which} {name}": tensor
        for which in EVERY_POLICY
        if kept[which]
        for name, tensor in weights_of(actor, which).items()
    }


def updated(actor: DiffusionActor, case: Case, batch: dict[str, Tensor], first: int = 1) -> dict[str, Any]:
    """Metrics of some updates, and the weights before and after them."""
    before = policies(actor, case)
    metrics = [actor.update(batch, **request_of(case, step)) for step in range(first, first + UPDATES)]
    return {"metrics": metrics, "before": before, "after": policies(actor, case)}


def share_of(batch: dict[str, Tensor], case: Case, ranks: int, rank: int) -> dict[str, Tensor]:
    """The rows that the trainer gives a rank."""
    size = case.fsdp[ranks // 4].get("ulysses_sequence_parallel_size", 1)
    groups = ranks // size
    rows = rank_rows.order(len(batch["prompt_embeds"]), MINI_BATCH * SAMPLES, groups).chunk(groups)[rank // size]
    return {name: tensor[rows] for name, tensor in batch.items()}


def find(rank: int, ranks: int, folder: Path, kind: str) -> dict[str, Any]:
    """The updates of all cases on this number of ranks, by name."""
    batches = torch.load(folder / "batches.pt")
    updates = {}
    for name, case in CASES.items():
        if ranks // 4 == len(case.fsdp):
            continue
        fsdp = case.fsdp[ranks // 4]
        state = folder / f"state of {name}"
        mesh = parallel.make_mesh(kind, ranks, fsdp.get("fsdp_size", -1))
        actor = make(folder, case, fsdp, MICRO_BATCH, mesh)
        batch = share_of(batches[name], case, ranks, rank)
        updates[name] = updated(actor, case, batch)
        if name in RESUMED and ranks == 2:
            actor.save(state)
        elif name in RESUMED:
            resumed = make(folder, case, fsdp, MICRO_BATCH, mesh)
            resumed.load(state)
            updates[f"resumed {name}"] = updated(resumed, case, batch, 1 + UPDATES)
    return updates


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and the rows of each case."""
    from ml.workers.algorithms.algorithm_rows import make_batch

    folder = tmp_path_factory.mktemp("models")
    for architecture, make_model in MAKERS.items():
        make_model(folder / architecture)
    torch.save({name: make_batch(folder, case, loss_of(case)) for name, case in CASES.items()}, folder / "batches.pt")
    return folder


@pytest.fixture(scope="module")
def on_ranks(models: Path, run_ranks: Any) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by the number of ranks."""
    return {ranks: run_ranks(__file__, ranks, models) for ranks in (2, 4)}


@pytest.fixture(scope="module")
def alone(models: Path, on_ranks: Any) -> Any:
    """What one process found for a case, and for those that are resumed, from it or from the state of 2 ranks."""

    @cache
    def one(name: str) -> dict[str, Any]:
        case = CASES[name]
        batch = torch.load(models / "batches.pt")[name]
        actor = make(models, case, {}, None)
        updates = updated(actor, case, batch)
        if name in RESUMED:
            resumed = make(models, case, {}, None)
            resumed.load(models / f"state of {name}")
            updates["continued"] = updated(actor, case, batch, 1 + UPDATES)
            updates["resumed"] = updated(resumed, case, batch, 1 + UPDATES)
        return updates

    return one


def check_weights(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    """Differences are small against what the weights of a policy moved."""
    assert one["after"].keys() == other["after"].keys()
    for which in EVERY_POLICY:
        names = [name for name in one["after"] if name.startswith(which)]
        if not names:
            continue
        moved = max((one["after"][name] - one["before"][name]).abs().max().item() for name in names)
        differs = max((one["after"][name] - other["after"][name]).abs().max().item() for name in names)
        assert moved > 1e-6 and differs < tolerance * moved, (which, differs, moved)


def check_metrics(case: Case, one: list[dict[str, float]], ranks: list[list[dict[str, float]]]) -> None:
    """Metrics of the training step, as the trainer records them."""
    algorithm = training_algorithm(case.loss_mode)
    for step, alone in enumerate(one):
        assert [rank[step].keys() for rank in ranks] == [alone.keys()] * len(ranks)
        metrics = step_metrics.over_ranks({name: [rank[step][name] for rank in ranks] for name in alone})
        wanted = algorithm.metrics(step_metrics.over_ranks({name: [value] for name, value in alone.items()}))
        assert algorithm.metrics(metrics) == {
            name: pytest.approx(value, rel=5e-3, abs=ROUNDING.get(name, 1e-7), nan_ok=True)
            for name, value in wanted.items()
        }, step


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, ranks) for name, case in CASES.items() for ranks, _ in zip((2, 4), case.fsdp, strict=False)],
)
def test_ranks_take_the_updates_of_one_process(on_ranks: Any, alone: Any, name: str, ranks: int) -> None:
    """Weights to 0.2% of the largest change of a weight, metrics to 0.5%."""
    case = CASES[name]
    single = alone(name)
    every = [updates[name] for updates in on_ranks[ranks]]
    check_weights(single, every[0], 2e-3)
    check_metrics(case, single["metrics"], [updates["metrics"] for updates in every])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.limits])
def test_rows_on_both_sides_of_a_limit_are_tested(alone: Any, name: str) -> None:
    assert any(0 < metrics[CASES[name].limits] < 1 for metrics in alone(name)["metrics"])


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(on_ranks: Any) -> None:
    name = "a gradient that is not finite"
    for every in on_ranks.values():
        for updates in every:
            steps = [(step["actor/optimizer_steps"], step["actor/skipped_steps"]) for step in updates[name]["metrics"]]
            assert steps == [(1.0, 1.0)] * UPDATES


@pytest.mark.parametrize("name", RESUMED)
def test_other_ranks_continue_what_two_ranks_saved(on_ranks: Any, alone: Any, name: str) -> None:
    """Optimizer, schedule, old policy and average."""
    case = CASES[name]
    single = alone(name)
    every = [updates[f"resumed {name}"] for updates in on_ranks[4]]
    for resumed in (every[0], single["resumed"]):
        check_weights(single["continued"], resumed, 5e-3)
    check_metrics(case, single["continued"]["metrics"], [updates["metrics"] for updates in every])
    check_metrics(case, single["continued"]["metrics"], [single["resumed"]["metrics"]])
