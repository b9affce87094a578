"""Actors of tiny models, recorded samples for them, and the comparison of two updates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from verl_omni.pipelines.registry import training_adapter
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig, GRPOObjective
from verl_omni.workers.config import DiffusionActorConfig, DiffusionOptimizerConfig

SAMPLER: dict[str, Any] = {"noise_level": 0.7, "sde_type": "sde"}
# Layers of Stable Diffusion 3 with an adapter, and rewards of the samples of two prompts.
TARGETS = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.2")
ADVANTAGES = torch.tensor([1.0, -0.5, 0.25, -0.75])


def smooth_steps(lr: float, **changes: Any) -> DiffusionOptimizerConfig:
    """An optimizer for tests that compare weights after its steps: AdamW whose steps are nearly proportional to the
    gradient.

    With the usual eps, a step has the size of the learning rate however small the gradient is. Where it is nearly 0,
    its rounding, which depends on processor and batch size, then decides the step.
    """
    return DiffusionOptimizerConfig(lr=lr, eps=1e-3, **changes)


def relative_difference(before: Mapping[str, Tensor], one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Norm of the difference of two updates, relative to the norm of the first one; the names must agree.

    After smooth steps rounding in float32 gives 1e-6 (random relative noise of 1e-7 after each linear layer), and what
    tests break gives 0.1 and more.
    """
    assert before.keys() == one.keys() == other.keys()
    moved = sum(float((tensor - before[name]).double().square().sum()) for name, tensor in one.items())
    differs = sum(float((tensor - other[name]).double().square().sum()) for name, tensor in one.items())
    assert moved > 0
    return float((differs / moved) ** 0.5)


def model_settings(
    folder: Path,
    targets: Sequence[str] | None = None,
    *,
    rank: int = 4,
    adapters: Sequence[str] = ("default",),
    architecture: str = "StableDiffusion3Pipeline",
    kernel: str = "native",
    checkpointing: bool = False,
) -> Any:
    """What an actor reads of the settings of the model.

    Args:
        targets: layers with an adapter of this rank; None: the family's. With rank 0, all weights are trained.
        adapters: `policy_state_adapters`.
        kernel: `attn_backend`.
        checkpointing: `enable_gradient_checkpointing`.
    """
    family = training_adapter(architecture)
    return SimpleNamespace(
        path=str(folder),
        architecture=architecture,
        lora_rank=rank,
        lora_alpha=8,
        lora_adapter_path=None,
        target_modules=list(family.LORA_TARGETS if targets is None else targets),
        exclude_modules=None,
        lora_init_weights="gaussian",
        fsdp_layer_prefixes=list(family.LAYERS),
        policy_state_adapters=tuple(adapters),
        attn_backend=kernel,
        enable_gradient_checkpointing=checkpointing,
    )


def make_actor(
    model: Any,
    samples: int = 2,
    *,
    actor_class: type[DiffusionActor] = DiffusionActor,
    mesh: Any = None,
    device: Any = None,
    **settings: Any,
) -> DiffusionActor:
    """An actor of `model_settings`: Flow-GRPO with mini-batches of 2 prompts and a learning rate of 0.01.

    Args:
        samples: of each prompt.
        settings: others of `DiffusionActorConfig`.
    """
    defaults = {
        "diffusion_loss": FlowGRPOLossConfig(),
        "ppo_mini_batch_size": 2,
        "optim": DiffusionOptimizerConfig(lr=1e-2),
    }
    return actor_class(model, DiffusionActorConfig(**defaults | settings), samples, mesh=mesh, device=device)


def weights_of(actor: DiffusionActor, which: Any = "default") -> dict[str, Tensor]:
    """Copies in CPU memory of the weights that the engine gets: the adapter, or all weights if all are trained."""
    kind: Any = "lora" if actor.model_config.lora_rank else "full"
    return {name: tensor.detach().cpu().clone() for name, tensor in actor.weights(kind, which)}


@torch.no_grad()
def log_probs(actor: DiffusionActor, data: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities of the recorded steps under the current policy, [B, T]."""
    objective = GRPOObjective(actor.policy, FlowGRPOLossConfig(), kl_loss_coef=None, **SAMPLER)
    with actor.offload.loaded():
        part = {name: tensor.to(actor.device) for name, tensor in data.items()}
        steps = range(data["all_timesteps"].shape[1])
        return torch.stack([objective.density(part, step)[2] for step in steps], dim=1).cpu()


def recorded_steps(rows: int, sigmas: Sequence[float], side: int = 8) -> dict[str, Tensor]:
    """Rows of samples of the tiny Stable Diffusion 3, with T recorded steps between T + 1 noise levels.

    Latents are float32 [rows, T + 1, 16, side, side], embeddings [rows, 8, 64] and [rows, 64], noise levels
    [rows, T + 1].
    """
    generator = torch.Generator().manual_seed(5)
    levels = torch.tensor(sigmas).expand(rows, len(sigmas))
    return {
        "all_latents": torch.randn(rows, len(sigmas), 16, side, side, generator=generator),
        "all_timesteps": levels[:, :-1] * 1000,
        "all_sigmas": levels,
        "sigma_max": torch.full((rows, 1), sigmas[0]),
        "prompt_embeds": torch.randn(rows, 8, 64, generator=generator),
        "pooled_prompt_embeds": torch.randn(rows, 64, generator=generator),
    }


class LargestTensor(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of the largest tensor in real memory that an operator returns, and the number of matrix multiplications."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        real = [leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and not leaf.is_meta]
        self.bytes = max(self.bytes, *real, 0)
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return result
