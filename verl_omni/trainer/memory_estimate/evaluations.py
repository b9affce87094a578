"""Samples that the engines generate for evaluations: their settings and their number."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_omni.trainer.data import run_length

STEPS = "num_inference_steps"


def settings_of(config: DictConfig) -> DictConfig:
    """The settings with `rollout.pipeline` as evaluations have it; `val_kwargs.pipeline` replaces some."""
    changed: DictConfig = config.copy()
    rollout = changed.actor_rollout_ref.rollout
    rollout.pipeline = OmegaConf.merge(rollout.pipeline, rollout.val_kwargs.pipeline)
    return changed


def have_samples_of_training(config: DictConfig) -> bool:
    """Whether evaluation samples need as much memory as training samples; the number of steps does not matter."""
    pipelines = [settings.actor_rollout_ref.rollout.pipeline for settings in (config, settings_of(config))]
    evaluation, training = (
        {name: value for name, value in pipeline.items() if name != STEPS} for pipeline in pipelines
    )
    return evaluation == training


def count_samples(config: DictConfig) -> int | None:
    """Samples of one evaluation; None if the files are not on this machine, for example in a claim or a store.

    Raises:
        ValueError: a file cannot be read.
    """
    files = config.data.val_files
    most = config.data.val_max_samples
    paths = [files] if isinstance(files, str) else list(files)
    if not all(Path(path).is_file() for path in paths):
        return most if most > 0 else None
    rows = run_length.count_rows(paths)
    return min(rows, most) if most > 0 else rows
