"""Start of a run in its folder: the checkpoint that it continues from, and what differs from before."""

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from verl_omni.trainer.run import checkpoint_origin, checkpoints
from verl_omni.trainer.run.checkpoint_saver import ADAPTERS
from verl_omni.trainer.run.resumed_settings import describe_changes
from verl_omni.trainer.run.run_folder import RunFolder


def begin(config: DictConfig, folder: RunFolder, without_effect: Mapping[str, str]) -> Path | None:
    """Start a run in its folder, with events for warnings and notes to the user.

    Args:
        without_effect: settings that do nothing here, with the reason.

    Returns:
        The checkpoint that it continues from.
    """
    folder.take()
    own_checkpoints = folder.path / "checkpoints"
    checkpoints.recover(own_checkpoints)
    aside = checkpoints.set_aside(own_checkpoints) if config.trainer.resume_mode == "disable" else None
    if config.trainer.resume_mode == "disable":
        checkpoints.set_aside(folder.path / ADAPTERS)
    by_path = config.trainer.resume_mode == "resume_path"
    checkpoint = Path(config.trainer.resume_from_path) if by_path else checkpoints.latest(own_checkpoints)
    step = None if checkpoint is None else checkpoints.step_of(checkpoint)
    changes = "" if checkpoint is None else _changes(checkpoint, config)
    continues = checkpoint is not None and checkpoint.resolve().parent == own_checkpoints.resolve()
    folder.start(config, resumed_from=step, continues=continues)
    if changes:
        text = f"the run starts from {checkpoint}, which was trained with other settings: {changes}"
        if not by_path:
            text = (
                f"the run continues after step {step} with other settings than before: {changes}. For a new run, give "
                "the job another name, or set trainer.resume_mode=disable (spec.checkpoint.resume: Never)"
            )
        folder.event("warning", reason="ResumedWithChanges", message=text, step=step)
    if aside is not None:
        text = f"trainer.resume_mode=disable: the checkpoints of an earlier run are now in {aside}"
        folder.event("warning", reason="CheckpointsSetAside", message=text)
    if without_effect:
        text = "; ".join(f"{name} ({reason})" for name, reason in without_effect.items())
        folder.event("warning", reason="SettingsWithoutEffect", message=f"settings that have no effect here: {text}")
    return checkpoint


def _changes(checkpoint: Path, config: DictConfig) -> str:
    """Differences between the run and its checkpoint's origin; empty if there are none, or the origin is unknown."""
    before = checkpoint_origin.read(checkpoint)
    if before is None:
        return ""
    return describe_changes(before.settings, config, before.content, checkpoint_origin.of_run(config).content)
