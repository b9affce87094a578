"""Sequence parallelism on 2 and 4 ranks (gloo, NCCL): the update of one process, from ranks that share each sample.

The ranks are forked from a process that has imported everything, and each runs this file.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from ml.workers.tiny_actor import make_actor, model_settings, relative_difference, smooth_steps, weights_of
from verl_omni.pipelines.flux.tiny_model import make_tiny_flux
from verl_omni.pipelines.flux2_klein.tiny_model import make_tiny_flux2_klein
from verl_omni.pipelines.qwen_image.tiny_model import make_tiny_qwen_image
from verl_omni.pipelines.qwen_image_edit.tiny_model import make_tiny_qwen_image_edit
from verl_omni.pipelines.registry import FAMILIES, family_sizes
from verl_omni.pipelines.sample_shapes import sample_shapes
from verl_omni.pipelines.wan.tiny_model import make_tiny_wan
from verl_omni.workers.actor import parallel
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.config import DiffusionFSDPConfig, DiffusionMixedPrecisionConfig

pytestmark = pytest.mark.slow

QWEN_IMAGE = "QwenImagePipeline"
EDIT = "QwenImageEditPipeline"
WAN = "WanPipeline"
FLUX = "FluxPipeline"
KLEIN = "Flux2KleinPipeline"
MAKERS = {
    QWEN_IMAGE: make_tiny_qwen_image,
    EDIT: make_tiny_qwen_image_edit,
    WAN: make_tiny_wan,
    FLUX: make_tiny_flux,
    KLEIN: make_tiny_flux2_klein,
}
PADDED = (FLUX, KLEIN)  # families that attend to the padding of prompts
SAMPLER = {"noise_level": 0.7, "sde_type": "sde", "guidance_scale": 3.0}
ROWS = 4
STEPS = 2
SHARING = 2


@dataclass(frozen=True)
class Case:
    """A model on some ranks; `adapter` is its rank, or 0 for all weights."""

    architecture: str
    ranks: int
    adapter: int
    fsdp: dict[str, Any] = field(default_factory=dict)
    checkpointing: bool = False
    kl: bool = False

    @property
    def half(self) -> bool:
        return "mixed_precision" in self.fsdp


HALF = {"mixed_precision": DiffusionMixedPrecisionConfig(param_dtype="bfloat16")}
CASES = {
    "Qwen-Image on 2": Case(QWEN_IMAGE, 2, 4, checkpointing=True, kl=True),
    "all weights of Qwen-Image on 2": Case(QWEN_IMAGE, 2, 0),
    "Qwen-Image-Edit on 2": Case(EDIT, 2, 4),
    "FLUX.1 on 2": Case(FLUX, 2, 4, kl=True),
    "all weights of FLUX.1 on 2": Case(FLUX, 2, 0, checkpointing=True),
    "FLUX.2 on 2": Case(KLEIN, 2, 4),
    "all weights of FLUX.2 on 2": Case(KLEIN, 2, 0, checkpointing=True),
    "Wan on 2": Case(WAN, 2, 4, kl=True),
    "all weights of Wan on 2": Case(WAN, 2, 0, checkpointing=True),
    "Wan in bfloat16 on 2": Case(WAN, 2, 4, HALF),
    "Qwen-Image on 2 x 2": Case(QWEN_IMAGE, 4, 0, {"use_no_sync_for_gradient_accumulation": False}),
    "Wan on 2 x 2": Case(WAN, 4, 4),
    "two copies of Wan on 2 x 2": Case(WAN, 4, 0, {"fsdp_size": 2}, checkpointing=True),
}
# Without activation checkpointing.
MEASURED = ("all weights of Qwen-Image on 2", "Wan on 2", "FLUX.1 on 2", "FLUX.2 on 2")


def make(
    folder: Path, case: Case, mesh: Any = None, share: int = 1, kernel: str = "native", device: Any = None
) -> DiffusionActor:
    model = model_settings(
        folder / case.architecture,
        rank=case.adapter,
        architecture=case.architecture,
        kernel=kernel,
        checkpointing=case.checkpointing,
    )
    return make_actor(
        model,
        samples=1,
        mesh=mesh,
        device=device,
        ppo_mini_batch_size=ROWS,
        ppo_micro_batch_size_per_gpu=1,
        optim=smooth_steps(lr=0.1 if case.adapter else 1e-3),
        use_kl_loss=case.kl,
        kl_loss_coef=0.1,
        fsdp_config=DiffusionFSDPConfig(ulysses_sequence_parallel_size=share, **case.fsdp),
    )


@cache
def batch(architecture: str) -> dict[str, Tensor]:
    """Prompts of Qwen-Image have 3 to 6 rows, so that some micro-batches have lengths that 2 does not divide."""
    generator = torch.Generator().manual_seed(5)
    sigmas = torch.tensor([0.9, 0.6, 0.3]).expand(ROWS, STEPS + 1)
    latents = (4, 3, 8, 8) if architecture == WAN else (24, 16)
    length, width = (8, 48 if architecture == KLEIN else 32) if architecture in PADDED else (7, 32)
    tensors = {
        "all_latents": torch.randn(ROWS, STEPS + 1, *latents, generator=generator),
        "all_timesteps": sigmas[:, :-1] * 1000,
        "all_sigmas": sigmas,
        "sigma_max": torch.full((ROWS, 1), 0.9),
        "prompt_embeds": torch.randn(ROWS, length, width, generator=generator),
        "negative_prompt_embeds": torch.randn(ROWS, length, width, generator=generator),
        "advantages": torch.linspace(-1, 1, ROWS),
        # So that the ratio is far inside the clip range, where the loss is smooth.
        "rollout_log_probs": torch.full((ROWS, STEPS), -10.0),
    }
    if architecture in PADDED:
        tensors["image_size"] = torch.tensor([4, 6]).expand(ROWS, -1)
        tensors["pooled_prompt_embeds"] = torch.randn(ROWS, 32, generator=generator)
        tensors["guidance"] = torch.full((ROWS, 1), 3.5)
    elif architecture != WAN:
        lengths = torch.arange(3, 3 + ROWS)[:, None]
        tensors["prompt_embeds_mask"] = (torch.arange(7) < lengths).long()
        tensors["negative_prompt_embeds_mask"] = (torch.arange(7) < 2).long().expand(ROWS, -1)
        tensors["img_shapes"] = torch.tensor([1, 4, 6]).expand(ROWS, -1)
    if architecture == EDIT:
        tensors["image_latents"] = torch.randn(ROWS, 16, 16, generator=generator)
        tensors["img_shapes"] = torch.tensor([[1, 4, 6], [1, 4, 4]]).expand(ROWS, -1, -1)
    return tensors


def updated(actor: DiffusionActor, share: slice) -> dict[str, Any]:
    """Two updates: the metrics of each, and the trained weights before and after them."""
    before = weights_of(actor)
    data = {name: tensor[share] for name, tensor in batch(actor.model_config.architecture).items()}
    metrics = [actor.update(data, **SAMPLER) for _ in range(2)]
    return {"metrics": metrics, "before": before, "weights": weights_of(actor)}


def saved_bytes(actor: DiffusionActor) -> int:
    """Bytes of the activations that a forward pass keeps for the backward pass, without weights."""
    part = {name: tensor[:1].to(actor.device) for name, tensor in batch(actor.model_config.architecture).items()}
    sizes: dict[tuple[int, tuple[int, ...]], int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter) and tensor.ndim > 2:
            sizes[tensor.data_ptr(), tuple(tensor.shape)] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = actor.policy.velocity(part, part["all_latents"][:, 0], part["all_timesteps"][:, 0], 1.0)
        assert kept.requires_grad
    return sum(sizes.values())


def refused_kernel(folder: Path, case: Case, mesh: Any, device: torch.device) -> str:
    """The error of an attention kernel that diffusers cannot split."""
    try:
        make(folder, case, mesh, SHARING, kernel="_native_math", device=device)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def find(rank: int, ranks: int, folder: Path, kind: str) -> dict[str, Any]:
    """The updates of all cases of this number of ranks, by name; each rank is on its device of this kind."""
    rows = ROWS * SHARING // ranks
    first = rank // SHARING * rows
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        if case.ranks == ranks:
            mesh = parallel.make_mesh(kind, ranks, case.fsdp.get("fsdp_size", -1))
            actor = make(folder, case, mesh, SHARING, device=parallel.device_of(mesh))
            results[name] = updated(actor, slice(first, first + rows))
    if ranks == SHARING:
        mesh = parallel.make_mesh(kind, ranks, -1)
        device = parallel.device_of(mesh)
        for name in MEASURED:
            results[f"saved by {name}"] = saved_bytes(make(folder, CASES[name], mesh, SHARING, device=device))
        # Last: diffusers selects a kernel for the whole process.
        results["refused"] = refused_kernel(folder, CASES["Wan on 2"], mesh, device)
    return results


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for architecture, make_model in MAKERS.items():
        make_model(folder / architecture)
    return folder


@pytest.fixture(scope="module")
def found(models: Path, run_ranks: Any, found_on_devices: Any) -> Any:
    """What each rank found, by the name of the case."""
    for ranks in found_on_devices.ranks[1:]:  # one rank shares no sample
        for of_rank in run_ranks(__file__, ranks, models, found_on_devices.kind):
            for name, result in of_rank.items():
                found_on_devices.setdefault(name, []).append(result)
    return found_on_devices


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_share_samples_take_the_update_of_one_process(found: Any, models: Path, name: str) -> None:
    """The update differs by at most 0.1%, by rounding; in bfloat16, whose gradients are rounded to 0.4%, by 10%."""
    case = CASES[name]
    ranks = found[name]
    single = updated(make(models, case, device=torch.device(found.kind)), slice(0, ROWS))
    for step, alone in enumerate(single["metrics"]):
        norms = [rank["metrics"][step]["actor/grad_norm"] for rank in ranks]
        assert norms == pytest.approx([alone["actor/grad_norm"]] * len(ranks), rel=3e-2 if case.half else 1e-3)
        losses = [rank["metrics"][step]["actor/loss"] for rank in ranks[::SHARING]]
        assert sum(losses) / len(losses) == pytest.approx(alone["actor/loss"], rel=1e-3, abs=1e-3)
    assert relative_difference(single["before"], single["weights"], ranks[0]["weights"]) < (0.1 if case.half else 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_ranks_of_a_group_measure_the_same(found: dict[str, list[Any]], name: str) -> None:
    """To the last bit, so that one of them can report for the group."""
    ranks = found[name]
    for first_rank in range(0, len(ranks), SHARING):
        first, second = (rank["metrics"] for rank in ranks[first_rank : first_rank + SHARING])
        assert first == second
    if len(ranks) > SHARING:
        assert ranks[0]["metrics"] != ranks[SHARING]["metrics"], "groups train on other rows"


@pytest.mark.parametrize("name", MEASURED)
def test_each_rank_keeps_half_of_the_activations(found: Any, models: Path, name: str) -> None:
    """To a tenth: each rank also keeps what is not split, such as embeddings of the timestep and of Wan's prompt."""
    parts = found[f"saved by {name}"]
    unsplit_bytes = saved_bytes(make(models, CASES[name], device=torch.device(found.kind)))
    for part in parts:
        assert 0.45 * unsplit_bytes < part < 0.55 * unsplit_bytes


def test_a_kernel_that_cannot_be_split_is_refused(found: dict[str, list[Any]]) -> None:
    for message in found["refused"]:
        assert "ulysses_sequence_parallel_size: 2 is not supported" in message
        assert "model.attn_backend" in message and "'_native_math'" in message


@pytest.mark.parametrize("architecture", FAMILIES)
def test_families_split_the_sequence_if_diffusers_has_a_plan(architecture: str) -> None:
    name, _ = family_sizes(FAMILIES[architecture].folder).MEASURED
    assert (getattr(diffusers, name)._cp_plan is not None) == sample_shapes(architecture).SPLITS_SEQUENCE


@pytest.mark.parametrize(
    ("architecture", "tokens"),
    [(QWEN_IMAGE, 4 * 6), (FLUX, 4 * 6), (KLEIN, 4 * 6), (EDIT, 4 * 6 + 52 * 78), (WAN, 3 * 4 * 6)],
)
def test_the_sequence_length_is_that_of_the_transformer(models: Path, architecture: str, tokens: int) -> None:
    """Samples have 64 x 96 pixels; Wan's have 9 frames."""
    folder = models / architecture
    configs = {name: json.loads((folder / name / "config.json").read_text()) for name in ("transformer", "vae")}
    pipeline = SimpleNamespace(height=64, width=96, num_frames=9)
    assert sample_shapes(architecture).sequence_length(configs, pipeline) == tokens
