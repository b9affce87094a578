"""PURE: inputs of a transformer whose sequence is split over ranks (Ulysses)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad


def sequence_ranks(transformer: Any) -> int:
    """Ranks that share the sequence of a diffusers transformer (`ModelMixin.enable_parallelism`); 1: it is whole."""
    config = getattr(transformer, "_parallel_config", None)
    return 1 if config is None else int(config.context_parallel_config.ulysses_degree)


def divisible_rows(embeds: Tensor, mask: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Embeddings [B, R, D] and their mask, bool [B, R], with masked rows added until `ranks` divides R."""
    missing = -embeds.shape[1] % ranks
    return pad(embeds, (0, 0, 0, missing)), pad(mask, (0, missing))
