"""Checks of the settings of the chosen training algorithm.

Importing this module imports neither torch nor verl: the trainer checks its settings before it sets the environment
variables that they read when they are imported.
"""

import math
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from verl_omni.algos.sde_settings import SCATTERED_PROGRESSIVE, SdeSettings
from verl_omni.settings_schema.layout import default_algorithm
from verl_omni.workers.actor.setting_checks import SEQUENCE_PARALLEL, sequence_groups
from verl_omni.workers.algorithms.description import ACTOR, MODEL, ROLLOUT, RegisteredAlgorithm, RequiredSetting
from verl_omni.workers.algorithms.other_names import OTHER_NAMES
from verl_omni.workers.algorithms.registered import ALGORITHMS

DEFAULT = default_algorithm()


def _noise_conflicts(config: DictConfig) -> Sequence[str]:
    rollout = config.actor_rollout_ref.rollout
    conflicts = []
    if rollout.algo.init_same_noise and rollout.algo.noise_level <= 0:
        conflicts.append(
            f"{ROLLOUT}.algo.init_same_noise: without noise in the steps (algo.noise_level=0), all samples of a prompt "
            "would be the same; write false"
        )
    return conflicts


def _window_conflicts(config: DictConfig, *, on_recorded_steps: bool) -> Sequence[str]:
    algo = config.actor_rollout_ref.rollout.algo
    steps = config.actor_rollout_ref.rollout.pipeline.num_inference_steps
    if algo.noise_level <= 0:
        return []  # no step has noise
    if algo.sample_strategy == "progressive" and not algo.sde_contiguous:
        return [f"{ROLLOUT}.algo.sde_contiguous: {SCATTERED_PROGRESSIVE}"]
    try:
        settings = SdeSettings.read(algo)
    except ValueError:
        return []  # the checks of each setting name it
    if settings.window_size is None and settings.window_range is None:
        if config.algorithm.adv_estimator == "mix_grpo":
            return [f"{ROLLOUT}.algo.sde_window_size: mix_grpo trains on a window of the steps; write how many it has"]
        if steps == 1:
            name = f"{ROLLOUT}.pipeline.num_inference_steps"
            return [f"{name}: must be at least 2: noise is in all steps but the last (algo.sde_window_range: [0, 1])"]
    try:
        settings.bounds(steps)
    except ValueError as error:
        return [f"{ROLLOUT}.algo.sde_window_size: {error}"]
    if on_recorded_steps and settings.kind == "cps" and settings.window_range and settings.window_range[1] == steps:
        return [
            f"{ROLLOUT}.algo.sde_window_range: {list(settings.window_range)} contains the last of {steps} steps, where "
            "cps adds no noise; end the range before it"
        ]
    return []


def _rank_conflicts(config: DictConfig, entry: RegisteredAlgorithm) -> Sequence[str]:
    """Rows that the ranks cannot share evenly, of a training step and of a mini-batch."""
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    conflicts = []
    if ranks < 1:
        return []  # the checks of each setting name it
    try:
        groups = sequence_groups(ranks, OmegaConf.select(config, SEQUENCE_PARALLEL))
    except ValueError as error:
        return [str(error)]
    sharing = f"{ranks} ranks" if groups == ranks else f"{groups} groups of ranks"
    per_prompt = entry.rows_per_prompt(config.actor_rollout_ref.rollout.n)
    for name in ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"):
        rows = OmegaConf.select(config, name) * per_prompt
        if rows % groups != 0:
            conflicts.append(f"{name}: {sharing} cannot share {rows} {entry.row}s evenly; write another number")
    return conflicts


def optimizer_steps(config: DictConfig) -> int:
    """Optimizer steps of the whole run: each training step takes one for each mini-batch, `ppo_epochs` times."""
    actor = config.actor_rollout_ref.actor
    mini_batches = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size)
    return int(config.trainer.total_training_steps * mini_batches * actor.ppo_epochs)


def check_name(name: str) -> None:
    """Refuse an algorithm that is not registered.

    Raises:
        ValueError: there is none of this name; the message lists the names, or says what the name stands for.
    """
    if name in ALGORITHMS:
        return
    if meant := OTHER_NAMES.get(name):
        others = " and ".join(meant.defaults)
        raise ValueError(f"{name} is {meant.algorithm} with other settings: write {meant.algorithm}, and {others}")
    raise ValueError(f"no algorithm {name!r}; one of {', '.join(ALGORITHMS)}")


def _sampled_for(config: DictConfig, name: str, entry: RegisteredAlgorithm) -> tuple[RequiredSetting, ...]:
    """The setting `model.algorithm`; all algorithms on recorded steps need the same samples."""
    sampled = ALGORITHMS.get(config.actor_rollout_ref.model.algorithm)
    if sampled is not None and sampled.on_recorded_steps and entry.on_recorded_steps:
        return ()
    reason = "the engine must sample for the algorithm that is trained"
    return (RequiredSetting(f"{MODEL}.algorithm", name, reason),)


def setting_conflicts(config: DictConfig) -> list[str]:
    """Settings that the chosen algorithm cannot use: a message for each, with its value and the value it needs."""
    name = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
    entry = ALGORITHMS[name]
    conflicts = []
    for required in (*_sampled_for(config, name, entry), *entry.required):
        value = OmegaConf.select(config, required.name)
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        if text := required.conflict(plain, name):
            conflicts.append(text)
    shared = (*_rank_conflicts(config, entry), *_noise_conflicts(config))
    window = _window_conflicts(config, on_recorded_steps=entry.on_recorded_steps)
    return [*conflicts, *shared, *window, *entry.problems(config)]
