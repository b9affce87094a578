"""Prompts -> scored samples, through verl's agent-loop manager."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl import DataProto

from verl_omni.pipelines.registry import training_adapter
from verl_omni.utils.pixels import as_pixels

# Per-sample tensors of a training batch, those that the algorithm asked for, beside the conditions of the family.
RECORDED = ("clean_latents", "all_latents", "all_timesteps", "all_sigmas", "sigma_max", "rollout_log_probs")


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """What came back for a batch, in the order of its rows.

    Attributes:
        tensors: the training tensors, [B, ...].
        images: uint8 [B, C, H, W], or videos [B, T, C, H, W]; None where `meta_info["carry_responses"]` is false.
        scores: float32 [B].
        extras: lists of length B, by name.
        versions: weight version of each sample.
        groups: prompt each sample belongs to.
        seconds: wall time of generation with the scoring inside it.
        scoring_seconds: seconds the batch waited for its slowest reward; None where agent loops do not score.
    """

    tensors: dict[str, torch.Tensor]
    images: torch.Tensor | None
    scores: torch.Tensor
    extras: dict[str, list[Any]]
    versions: list[Any]
    groups: list[str]
    seconds: float
    scoring_seconds: float | None


def training_prompts(rows: list[dict[str, Any]], *, n: int, step: int, version: int, seed: int) -> DataProto:
    """Each prompt `n` times in a row, with the indices that seeds are derived from."""
    repeated = [row for row in rows for _ in range(n)]
    columns = _columns(repeated)
    columns["uid"] = np.array([f"{step}-{place}" for place in range(len(rows)) for _ in range(n)], dtype=object)
    columns["_rollout_seed_global_idx"] = np.arange(len(repeated), dtype=np.int64)
    return DataProto(
        batch=None, non_tensor_batch=columns, meta_info={"global_steps": version, "rollout_seed": seed + step - 1}
    )


def evaluation_prompts(rows: list[dict[str, Any]], *, seed: int, version: int | None = None) -> DataProto:
    """Each prompt once, with a seed of its own that is the same at every evaluation; `version` is for errors alone."""
    columns = _columns(rows)
    columns["uid"] = np.array([f"val-{place}" for place in range(len(rows))], dtype=object)
    columns["seed"] = np.array([seed + place for place in range(len(rows))], dtype=np.int64)
    return DataProto(batch=None, non_tensor_batch=columns, meta_info={"validate": True, "global_steps": version})


def generate(agent_loop: Any, prompts: DataProto, workers: int) -> DataProto:
    """Run the agent loop; batches that its workers do not divide are padded and cut again."""
    from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

    padded, extra = pad_dataproto_to_divisor(prompts, workers)
    return unpad_dataproto(agent_loop.generate_sequences(padded), extra)


def generate_scored(config: DictConfig, agent_loop: Any, prompts: DataProto) -> ScoredSamples:
    """Generate and score a batch.

    Raises:
        KeyError: no reward came back for some sample.
    """
    began = time.perf_counter()
    output = generate(agent_loop, prompts, config.actor_rollout_ref.rollout.agent.num_workers)
    seconds = time.perf_counter() - began
    if "rm_scores" not in output.batch:
        raise KeyError("samples came back without a reward: check reward.scorer and reward.reward_manager")
    columns = output.non_tensor_batch
    timing = output.meta_info.get("timing", {})
    wanted = (*RECORDED, *training_adapter(config.actor_rollout_ref.model.architecture).CONDITIONS)
    return ScoredSamples(
        tensors={name: output.batch[name] for name in wanted if name in output.batch},
        images=_shown(output.batch.get("responses"), config.actor_rollout_ref.rollout.pipeline.output_type),
        scores=output.batch["rm_scores"].squeeze(-1).float(),
        extras={key: list(columns[key]) for key in output.meta_info.get("reward_extra_keys", [])},
        versions=list(columns["global_steps"]),
        groups=[str(uid) for uid in columns["uid"]],
        seconds=seconds,
        scoring_seconds=timing.get("agent_loop/slowest/compute_score"),
    )


def _shown(responses: torch.Tensor | None, output_type: str) -> torch.Tensor | None:
    return responses if responses is None or output_type == "latent" else as_pixels(responses)


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name in rows[0]:
        column = np.empty(len(rows), dtype=object)  # np.array would make lists of messages a second dimension
        column[:] = [row[name] for row in rows]
        columns[name] = column
    return columns
