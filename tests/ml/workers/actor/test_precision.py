"""Mixed precision, activation checkpointing and guidance of the trained model, on one process in bfloat16."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ml.workers.tiny_actor import model_settings
from verl_omni.models.tiny import MAKERS
from verl_omni.pipelines.registry import FAMILIES
from verl_omni.workers.actor import build, parallel, precision
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig
from verl_omni.workers.config import (
    DiffusionActorConfig,
    DiffusionFSDPConfig,
    DiffusionMixedPrecisionConfig,
    DiffusionOptimizerConfig,
)

pytestmark = pytest.mark.slow

SD3 = "StableDiffusion3Pipeline"
WAN = "WanPipeline"
EDIT = "QwenImageEditPipeline"
# Shapes of one sample: latents, and embeddings of a prompt of 8 tokens.
SHAPES: dict[str, tuple[tuple[int, ...], dict[str, tuple[int, ...]]]] = {
    SD3: ((16, 8, 8), {"prompt_embeds": (8, 64), "pooled_prompt_embeds": (64,)}),
    "QwenImagePipeline": ((16, 16), {"prompt_embeds": (8, 32)}),
    EDIT: ((16, 16), {"prompt_embeds": (8, 32)}),
    WAN: ((4, 1, 8, 8), {"prompt_embeds": (8, 32)}),
}
ARCHITECTURES = sorted(SHAPES)
Make = Callable[..., DiffusionActor]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes an actor: `make(architecture, rank=4, dtype="bfloat16", checkpointing=False, lr=1e-3)`."""
    folders: dict[str, Path] = {}

    def made(
        architecture: str,
        *,
        rank: int = 4,
        dtype: str = "bfloat16",
        checkpointing: bool = False,
        lr: float = 1e-3,
        folder: Path | None = None,
        targets: Sequence[str] | None = None,
        **changes: Any,
    ) -> DiffusionActor:
        if architecture not in folders:
            folders[architecture] = tmp_path_factory.mktemp("model") / architecture
            MAKERS[FAMILIES[architecture].folder](folders[architecture])
        model = model_settings(
            folder or folders[architecture],
            targets,
            rank=rank,
            architecture=architecture,
            checkpointing=checkpointing,
        )
        fsdp = DiffusionFSDPConfig(mixed_precision=DiffusionMixedPrecisionConfig(param_dtype=dtype))
        config = DiffusionActorConfig(
            diffusion_loss=FlowGRPOLossConfig(),
            ppo_mini_batch_size=2,
            optim=DiffusionOptimizerConfig(lr=lr),
            fsdp_config=fsdp,
            **changes,
        )
        return DiffusionActor(model, config, 1)

    return made


def conditions(architecture: str, rows: int = 2) -> dict[str, Tensor]:
    """Embeddings of prompts of different lengths, and of negative prompts of others."""
    generator = torch.Generator().manual_seed(0)
    _, shapes = SHAPES[architecture]
    tensors = {
        f"{negative}{name}": torch.randn(rows, *shape, generator=generator)
        for negative in ("", "negative_")
        for name, shape in shapes.items()
    }
    for name, lengths in (("prompt_embeds_mask", (8, 5)), ("negative_prompt_embeds_mask", (3, 2))):
        tensors[name] = torch.tensor([[token < lengths[row % 2] for token in range(8)] for row in range(rows)])
    if architecture == EDIT:
        tensors["image_latents"] = torch.randn(rows, 16, 16, generator=generator)
        return tensors | {"img_shapes": torch.tensor([[[1, 4, 4]] * 2] * rows)}
    return tensors | {"img_shapes": torch.tensor([[1, 4, 4]] * rows)}


def latents(architecture: str, rows: int = 2) -> Tensor:
    return torch.randn(rows, *SHAPES[architecture][0], generator=torch.Generator().manual_seed(1))


def velocity(actor: DiffusionActor, architecture: str, guidance: float = 1.0, time: float = 500.0) -> Tensor:
    return actor.policy.velocity(conditions(architecture), latents(architecture), torch.full((2,), time), guidance)


def gradients(actor: DiffusionActor, architecture: str, guidance: float = 1.0) -> dict[str, Tensor]:
    velocity(actor, architecture, guidance).square().mean().backward()
    gathered = {name: whole(p.grad) for name, p in actor.policy.trained.items() if p.grad is not None}
    actor.optimizer.zero_grad()
    return gathered


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def test_small_steps_move_every_weight(make: Make) -> None:
    """Learning rate 1e-5: trained in bfloat16, most weights would never move."""
    actor = make(SD3, rank=0, lr=1e-5)
    gradient = gradients(actor, SD3)
    before = {name: whole(p.detach()).clone() for name, p in actor.policy.trained.items()}
    velocity(actor, SD3).square().mean().backward()
    actor.optimizer.step()
    moved = {
        name: (whole(p.detach()) != before[name])[gradient[name] != 0]
        for name, p in actor.policy.trained.items()
        if name in gradient
    }
    assert torch.cat([tensor.flatten() for tensor in moved.values()]).float().mean() > 0.99


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.layer(x),)


@pytest.mark.parametrize("once", [True, False], ids=["reduced once", "reduced each time"])
def test_micro_gradients_add_up(once: bool) -> None:
    """640 equal micro-gradients of 1: their sum in bfloat16 would stop at 256."""
    module = OneLayer()
    terms = 640
    half = precision.Precision(torch.float32, torch.bfloat16)
    mesh = parallel.mesh_of_one(torch.device("cpu"))
    parallel.parallelize(module, mesh, [], half, reshard_after_forward=True)
    for term in range(terms):
        parallel.require_reduction(module, not once or term == terms - 1)
        module(torch.ones(1, 4, dtype=torch.bfloat16))[0].sum().backward()
    gradient = whole(module.layer.weight.grad)
    assert gradient.dtype == torch.float32 and bool((gradient == terms).all())


@pytest.mark.parametrize("rank", [4, 0], ids=["adapter", "all weights"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_in_bfloat16_are_those_of_float32(make: Make, architecture: str, rank: int) -> None:
    full, half = (
        gradients(make(architecture, rank=rank, dtype=dtype), architecture) for dtype in ("float32", "bfloat16")
    )
    assert full.keys() == half.keys() and {tensor.dtype for tensor in half.values()} == {torch.float32}
    exact, rounded = (torch.cat([tensor.flatten() for tensor in by_name.values()]) for by_name in (full, half))
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.995
    assert not torch.equal(exact, rounded)


def test_a_first_pass_as_the_base_model_does_not_change_gradients(make: Make) -> None:
    """Diffusion-DPO begins with one, and FSDP2 notes at its first pass which weights are trained."""
    plain = make(SD3)
    second = make(SD3)
    with second.policy.as_base():
        velocity(second, SD3)
    second_gradients = gradients(second, SD3)
    assert all(torch.equal(second_gradients[name], gradient) for name, gradient in gradients(plain, SD3).items())


@pytest.mark.parametrize("rank", [4, 0], ids=["adapter", "all weights"])
def test_what_wan_keeps_in_float32_stays_in_float32(make: Make, rank: int) -> None:
    actor = make(WAN, rank=rank)
    seen: dict[str, torch.dtype] = {}

    def note(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, _: seen.update({name: next(module.parameters()).dtype})

    for name in ("condition_embedder.time_embedder.linear_1", "blocks.0.norm2", "blocks.0.attn1.to_q", "proj_out"):
        actor.module.get_submodule(name).register_forward_pre_hook(note(name))
    actor.module.get_submodule("blocks.0").attn1.register_forward_pre_hook(
        lambda *_: seen.update(table=actor.module.get_submodule("blocks.0").scale_shift_table.dtype)
    )
    velocity(actor, WAN)
    assert seen == {
        "condition_embedder.time_embedder.linear_1": torch.float32,
        "blocks.0.norm2": torch.float32,
        "blocks.0.attn1.to_q": torch.bfloat16,
        "proj_out": torch.bfloat16,
        "table": torch.float32 if rank else torch.bfloat16,
    }
    assert not torch.equal(velocity(actor, WAN, time=500.0), velocity(actor, WAN, time=500.25)), "500.25 is not rounded"


def test_frozen_weights_are_kept_in_bfloat16_and_trained_ones_in_float32(make: Make) -> None:
    dtypes = {name: p.dtype for name, p in make(SD3).module.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if "lora_" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if "lora_" not in name} == {torch.bfloat16}


def test_the_dtypes_that_the_settings_select() -> None:
    def resolved(lora: bool, **settings: Any) -> precision.Precision:
        mixed = DiffusionMixedPrecisionConfig(
            param_dtype=settings.pop("param_dtype", "bf16"), **settings.pop("mixed", {})
        )
        return precision.resolve(DiffusionFSDPConfig(mixed_precision=mixed, **settings), lora=lora)

    full = torch.float32
    half = torch.bfloat16
    assert resolved(True) == precision.Precision(half, half) and resolved(True).mixed
    assert resolved(False) == precision.Precision(full, half) and resolved(False).mixed
    assert resolved(True, model_dtype="fp32") == precision.Precision(full, half)
    assert not resolved(True, param_dtype="float32").mixed
    assert resolved(True, mixed={"buffer_dtype": "fp32"}).buffers == full
    assert resolved(False, model_dtype="bf16") == precision.Precision(full, half)
    with pytest.raises(ValueError, match="write float32 or bfloat16"):
        resolved(True, param_dtype="float16")
    with pytest.raises(ValueError, match="reduce_dtype must be float32"):
        resolved(True, mixed={"reduce_dtype": "bf16"})


def test_buffers_are_cast_on_request(make: Make) -> None:
    mixed = DiffusionMixedPrecisionConfig(param_dtype="bfloat16", buffer_dtype="float32")
    buffer_dtypes = {}
    for name, mixed_precision in (("given", mixed), ("none", DiffusionMixedPrecisionConfig(param_dtype="bfloat16"))):
        dtypes = precision.resolve(DiffusionFSDPConfig(mixed_precision=mixed_precision), lora=True)
        model = make(SD3).model_config
        buffer_dtypes[name] = build.load_transformer(model, precision=dtypes, seed=0).pos_embed.pos_embed.dtype
    assert buffer_dtypes == {"given": torch.float32, "none": torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_activation_checkpointing_does_not_change_a_bit(make: Make, architecture: str, dtype: str) -> None:
    kept, computed = (
        gradients(make(architecture, dtype=dtype, checkpointing=checkpointing), architecture)
        for checkpointing in (False, True)
    )
    assert all(torch.equal(kept[name], tensor) for name, tensor in computed.items())


# torch's compiler imports torch modules that use `torch.jit.script_method`.
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_compiled_layer_has_the_gradients_of_the_layer(make: Make, tmp_path: Path) -> None:
    """One layer with the compiler that runs use; the other tests only capture layers as graphs."""
    from diffusers import SD3Transformer2DModel

    config = {**make(SD3).module.config, "num_layers": 1}
    SD3Transformer2DModel.from_config(config).save_pretrained(tmp_path / "transformer")
    targets = ["attn.to_q", "attn.to_out.0"]  # the only layer is the last one, which has no attn.to_add_out
    plain, to_compile = (make(SD3, dtype="float32", folder=tmp_path, targets=targets) for _ in range(2))
    parallel.compile_layers(to_compile.module, to_compile.model_config.fsdp_layer_prefixes)
    expected = gradients(plain, SD3)
    compiled_gradients = gradients(to_compile, SD3)
    assert all(
        torch.allclose(compiled_gradients[name], gradient, rtol=1e-3, atol=1e-6) for name, gradient in expected.items()
    )


def compiled(actor: DiffusionActor) -> DiffusionActor:
    """The actor with layers that are captured as graphs, and run by torch's own kernels."""
    parallel.compile_layers(actor.module, actor.model_config.fsdp_layer_prefixes, backend="aot_eager")
    return actor


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it traces
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_layers_have_the_same_gradients(make: Make, architecture: str) -> None:
    """Every layer of every family is a single graph. Weights without influence get gradients of 0 instead of none."""
    plain, to_compile = (make(architecture, dtype="float32", checkpointing=True) for _ in range(2))
    expected = gradients(plain, architecture, 2.0)
    compiled_gradients = gradients(compiled(to_compile), architecture, 2.0)
    for name, gradient in compiled_gradients.items():
        wanted = expected.get(name, torch.zeros_like(gradient))
        assert torch.allclose(gradient, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max())), name
    assert to_compile.take_flops() == plain.take_flops() > 0  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it traces
@pytest.mark.parametrize("change", [lambda actor: actor, compiled], ids=["plain", "compiled"])
def test_with_checkpointing_layers_keep_their_inputs_only(
    make: Make, change: Callable[[DiffusionActor], DiffusionActor]
) -> None:
    kept = {}
    for checkpointing in (False, True):
        actor = change(make(SD3, dtype="float32", checkpointing=checkpointing))
        sizes = {}
        inputs = conditions(SD3), torch.randn(2, 16, 32, 32), torch.full((2,), 500.0)

        def note(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = actor.policy.velocity(*inputs, 1.0).square().mean()
        loss.backward()
        kept[checkpointing] = sum(sizes.values())
    assert kept[True] < 0.4 * kept[False], kept


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_guidance_is_one_batch_of_both_prompts(make: Make, architecture: str) -> None:
    actor = make(architecture, dtype="float32")
    rows: list[int] = []
    actor.module.register_forward_pre_hook(
        lambda _, __, inputs: rows.append(len(inputs["hidden_states"])), with_kwargs=True
    )
    with torch.no_grad():
        guided = velocity(actor, architecture, guidance=3.0)
        positive = velocity(actor, architecture)
        swapped = {
            f"negative_{name}".replace("negative_negative_", ""): value
            for name, value in conditions(architecture).items()
        }
        swapped |= {
            name: value for name, value in conditions(architecture).items() if name in {"img_shapes", "image_latents"}
        }
        negative = actor.policy.velocity(swapped, latents(architecture), torch.full((2,), 500.0), 1.0)
    assert rows == [4, 2, 2]
    expected = negative + 3.0 * (positive - negative)
    if architecture in {"QwenImagePipeline", EDIT}:
        expected = expected * (positive.norm(dim=-1, keepdim=True) / expected.norm(dim=-1, keepdim=True))
    assert torch.allclose(guided, expected, atol=1e-4)
    assert not torch.allclose(guided, positive, atol=1e-2)
