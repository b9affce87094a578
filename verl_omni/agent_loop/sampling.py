"""PURE: sampling parameters and seeds of the rows of a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_omni.settings_schema.reference_settings import Rejected, find_rule
from verl_omni.utils.pixels import BOTH
from verl_omni.utils.seeds import row_seed, sample_seeds, window_seed

KEEPS_PICTURE = "_keeps_picture"  # column of a request: whether the sample comes back with its pixels


def as_params(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Items whose names do not start with an underscore, without those that no model family reads; {} for None."""
    return {} if config is None else {key: config[key] for key in config if not _is_unread(key)}


def _is_unread(key: str) -> bool:
    return key.startswith("_") or isinstance(find_rule(f"actor_rollout_ref.rollout.pipeline.{key}"), Rejected)


def row_params(
    rollout: Any, meta_info: Mapping[str, Any], size: int, columns: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Sampling parameters of each row, independent copies.

    Validation takes overrides and seed from `val_kwargs`, and requests no fields for training, except for the final
    latents with the output type `both`; a column `seed` sets the seed of each row. Training passes the version of the
    weights, and seeds only if `rollout_seed` is given; otherwise the engine chooses them. With `algo.init_same_noise`,
    `seed` seeds the initial noise and is the same for all samples of a prompt, and `sde_noise_seed` seeds the noise of
    the steps. Without `algo.sde_window_seed`, all samples of a prompt get the same window seed, whichever worker
    generates them, so that their advantages compare noise of the same steps.

    Raises:
        KeyError: a training batch has no `global_steps`.
    """
    base = {**as_params(rollout.pipeline), **as_params(rollout.algo), "logprobs": rollout.calculate_log_probs}
    if meta_info.get("validate"):
        chosen = rollout.val_kwargs
        base |= {**as_params(chosen.pipeline), **as_params(chosen.algo), "seed": chosen.seed}
        base |= {"logprobs": False, "clean_latents": False}
        if base.get("output_type") == BOTH:
            base |= {"output_type": "image", "clean_latents": True}
        seeds = columns.get("seed")
        return [base | ({} if seeds is None else {"seed": int(seeds[row])}) for row in range(size)]
    base["global_steps"] = meta_info["global_steps"]
    if (finished := meta_info.get("finished_steps")) is not None:
        base["finished_steps"] = finished
    if (part := meta_info.get("step_part")) is not None:
        base["step_part"] = part
    seed = meta_info.get("rollout_seed")
    params = []
    for row in _whole_batch_rows(size, columns.get("_rollout_seed_global_idx")):
        row_seeds = {}
        if seed is not None:
            row_seeds = sample_seeds(int(seed), row, rollout.n, same_noise=rollout.algo.init_same_noise)
        if rollout.algo.sde_window_seed is None:
            row_seeds["sde_window_seed"] = window_seed(int(seed or 0), row, rollout.n)
        params.append(base | row_seeds)
    return params


def maybe_per_rollout_seeds(
    meta_info: Mapping[str, Any], batch_size: int, global_indices: Sequence[int] | None = None
) -> list[int] | None:
    """Seed of each row, or None without `meta_info["rollout_seed"]`.

    (base * 1_000_003 + index) mod (2^63 - 1) with the index in the whole batch, so seeds do not depend on how the batch
    is split over workers.

    Raises:
        ValueError: the number of indices is not `batch_size`.
    """
    base = meta_info.get("rollout_seed")
    if base is None:
        return None
    return [row_seed(int(base), row) for row in _whole_batch_rows(batch_size, global_indices)]


def _whole_batch_rows(size: int, global_indices: Sequence[int] | None) -> list[int]:
    """Places in the whole batch of the rows of a worker. Raises `ValueError` if their number is not `size`."""
    indices = range(size) if global_indices is None else global_indices
    if len(indices) != size:
        raise ValueError(f"Expected {size} global rollout indices, got {len(indices)}")
    return [int(index) for index in indices]
