"""Sample generation: prompts to scored samples, through verl's agent-loop manager."""

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
from verl_omni.utils.seeds import hashed_seed

# Tensors of a training sample, as far as the algorithm requests them; the family's conditions come on top.
RECORDED = ("clean_latents", "all_latents", "all_timesteps", "all_sigmas", "sigma_max", "rollout_log_probs")


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Generated and scored samples, in the order of the batch's rows.

    Attributes:
        tensors: training tensors, [B, ...].
        images: uint8 [B, C, H, W], or videos [B, T, C, H, W]; None if `meta_info["carry_responses"]` is false.
        scores: float32 [B].
        extras: further numbers of the scorer, lists of length B by name.
        versions: weight version of each sample.
        groups: id of each sample's prompt.
        seconds: wall time of generation, including scoring.
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
    """Training batch: each prompt `n` times in a row, with what the seed of each row is derived from.

    Seeds depend on the run's seed, the step and the row, so a resumed run draws the same samples.
    """
    repeated = [row for row in rows for _ in range(n)]
    columns = _columns(repeated)
    columns["uid"] = np.array([f"{step}-{place}" for place in range(len(rows)) for _ in range(n)], dtype=object)
    columns["_rollout_seed_global_idx"] = np.arange(len(repeated), dtype=np.int64)
    return DataProto(
        batch=None,
        non_tensor_batch=columns,
        meta_info={"global_steps": version, "rollout_seed": hashed_seed("samples", seed, step)},
    )


def evaluation_prompts(rows: list[dict[str, Any]], *, seed: int, version: int | None = None) -> DataProto:
    """Evaluation batch: each prompt once, with a fixed seed of its own; error messages show `version`."""
    columns = _columns(rows)
    columns["uid"] = np.array([f"val-{place}" for place in range(len(rows))], dtype=object)
    columns["seed"] = np.array([seed + place for place in range(len(rows))], dtype=np.int64)
    return DataProto(batch=None, non_tensor_batch=columns, meta_info={"validate": True, "global_steps": version})


def generate(agent_loop: Any, prompts: DataProto, workers: int) -> DataProto:
    """Run the agent loop; pad the batch to a multiple of its workers, and drop the padding again."""
    from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

    padded, extra = pad_dataproto_to_divisor(prompts, workers)
    return unpad_dataproto(agent_loop.generate_sequences(padded), extra)


def generate_scored(config: DictConfig, agent_loop: Any, prompts: DataProto) -> ScoredSamples:
    """Generate and score a batch.

    Raises:
        KeyError: a sample has no reward.
    """
    began = time.perf_counter()
    output = generate(agent_loop, prompts, config.actor_rollout_ref.rollout.agent.num_workers)
    seconds = time.perf_counter() - began
    if "rm_scores" not in output.batch:
        raise KeyError("samples have no reward: check reward.scorer and reward.reward_manager")
    columns = output.non_tensor_batch
    timing = output.meta_info.get("timing", {})
    names = (*RECORDED, *training_adapter(config.actor_rollout_ref.model.architecture).CONDITIONS)
    return ScoredSamples(
        tensors={name: output.batch[name] for name in names if name in output.batch},
        images=_pixels(output.batch.get("responses"), config.actor_rollout_ref.rollout.pipeline.output_type),
        scores=output.batch["rm_scores"].squeeze(-1).float(),
        extras={key: list(columns[key]) for key in output.meta_info.get("reward_extra_keys", [])},
        versions=list(columns["global_steps"]),
        groups=[str(uid) for uid in columns["uid"]],
        seconds=seconds,
        scoring_seconds=timing.get("agent_loop/slowest/compute_score"),
    )


def _pixels(responses: torch.Tensor | None, output_type: str) -> torch.Tensor | None:
    return responses if responses is None or output_type == "latent" else as_pixels(responses)


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name in rows[0]:
        column = np.empty(len(rows), dtype=object)  # np.array would make lists of messages a second dimension
        column[:] = [row[name] for row in rows]
        columns[name] = column
    return columns
