"""Sequence parallelism (Ulysses, arXiv:2309.14509): ranks of a group share the sequence of each sample.

diffusers splits the sequence before the first layer and gathers it after the last one. In an attention layer, each rank
exchanges its part of the sequence for some of the heads, and back. So every rank of a group computes the same
prediction and the same loss, and its backward pass gives it only its part's gradient: the gradient of a sample is the
sum over the ranks of its group.
"""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from verl_omni.workers.actor.setting_checks import SEQUENCE_PARALLEL, check_heads, sequence_groups


def split_sequence(module: nn.Module, device_type: str, ranks: int, size: int) -> None:
    """Split the sequence of a diffusers transformer over groups of `size` consecutive ranks. A collective.

    Call it after the adapter and the attention kernel are chosen, and before the model is sharded.

    Raises:
        ValueError: `size` does not divide the ranks or the attention heads; diffusers has no plan to split this
            transformer; or the attention kernel supports no split.
    """
    transformer: Any = module
    check_heads(size, transformer.config.num_attention_heads)
    from diffusers import ContextParallelConfig

    mesh = init_device_mesh(
        device_type, (sequence_groups(ranks, size), 1, size), mesh_dim_names=("data", "ring", "ulysses")
    )
    try:
        transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=size, mesh=mesh))
    except ValueError as error:  # from an attention kernel, or from a transformer without a plan
        raise ValueError(
            f"{SEQUENCE_PARALLEL}: {size} is not supported for this transformer with its attention kernel, "
            f"actor_rollout_ref.model.attn_backend; write another kernel, or 1: {error}"
        ) from error
