"""Experiment trackers of `trainer.logger`: verl's, which get the metrics, and the pictures that some of them show."""

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.trainer.run.run_folder import PREVIEW, ShownSample, as_picture

TAGS = {PREVIEW: "train/previews"}  # by kind; others are in val/generations


class TrackerNotOpened(RuntimeError):
    """A tracker that the settings name could not be opened."""


class Trackers:
    """Open trackers.

    Args:
        tracking: verl's `Tracking`.
        pictures: upper limit of the held-out samples of an evaluation that are shown (`trainer.log_val_generations`).
    """

    def __init__(self, tracking: Any, pictures: int) -> None:
        self._tracking = tracking
        self.pictures = pictures

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log the metrics of a step."""
        self._tracking.log(data=data, step=step)

    def show(self, step: int, samples: Sequence[ShownSample]) -> None:
        """Show held-out samples, with their prompts and scores, in the trackers that can."""
        by_tag: dict[str, list[ShownSample]] = {}
        for sample in samples:
            by_tag.setdefault(TAGS.get(sample.kind, "val/generations"), []).append(sample)
        for name, logger in self._tracking.logger.items():
            for tag, shown in by_tag.items():
                if (show := SHOW.get(name)) is not None:
                    show(logger, tag, step, shown)

    def finish(self) -> None:
        """Write everything and close."""
        self._tracking.finish()


def open_trackers(config: DictConfig, folder: Path, first: int = 0) -> Trackers | None:
    """Open the trackers of `trainer.logger`, None without any; those that write files write into the run folder.

    Args:
        first: the step from which the run repeats steps of an earlier attempt, or of another run; files keep what is
            before it.

    Raises:
        TrackerNotOpened: one did not start; verl only warns about it.
    """
    logger = config.trainer.logger
    names = [logger] if isinstance(logger, str) else list(logger or [])
    if not names:
        return None
    from verl.utils.tracking import Tracking

    places = {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "VERL_FILE_LOGGER_PATH": str(folder / "tracking.jsonl"),
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder.resolve()}/mlflow.db",
        # Where MLflow puts pictures without a server; its default is a folder below the working directory.
        "_MLFLOW_SERVER_ARTIFACT_ROOT": str(folder.resolve() / "mlflow"),
    }
    for variable, target in places.items():
        os.environ.setdefault(variable, target)
    before = _lines_before(first, Path(os.environ["VERL_FILE_LOGGER_PATH"])) if "file" in names else b""
    tracking = Tracking(
        config.trainer.project_name, config.trainer.experiment_name, names, OmegaConf.to_container(config, resolve=True)
    )
    if missing := [name for name in names if name not in tracking.logger]:
        tracking.finish()
        raise TrackerNotOpened(f"trainer.logger: {', '.join(missing)} did not start; its messages are above")
    if "file" in names:
        tracking.logger["file"].fp.write(before)
    ours = os.environ["TENSORBOARD_DIR"] == places["TENSORBOARD_DIR"]  # in a folder of the user, others may write too
    if "tensorboard" in names and ours:
        _drop_from(first, tracking.logger["tensorboard"].writer)
    return Trackers(tracking, int(config.trainer.log_val_generations))


def _lines_before(step: int, path: Path) -> bytes:
    """The lines of verl's file of metrics for earlier steps; opening it empties it."""
    text = path.read_bytes() if path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)  # a kill may have cut off the last one
    return b"".join(line for line in lines if json.loads(line)["step"] < step)


def _drop_from(step: int, writer: Any) -> None:
    """Let TensorBoard drop what earlier files have of this step and later ones, as `SummaryWriter(purge_step=step)`."""
    from torch.utils.tensorboard.writer import Event, SessionLog

    for event in (
        Event(step=step, file_version="brain.Event:2"),
        Event(step=step, session_log=SessionLog(status=SessionLog.START)),
    ):
        writer.file_writer.add_event(event, step)


def _caption(sample: ShownSample) -> str:
    score = "no score" if sample.score is None else f"score {sample.score:.4g}"
    if sample.kind == PREVIEW:
        trained = "no score" if sample.training_score is None else f"score {sample.training_score:.4g}"
        score = f"training {trained} | evaluation {score}"
    return f"{sample.prompt} (seed {sample.seed}, {score})"


def _show_in_wandb(wandb: Any, tag: str, step: int, samples: Sequence[ShownSample]) -> None:
    pictures = [wandb.Image(_array(sample), caption=_caption(sample)) for sample in samples]
    wandb.log({tag: pictures}, step=step)


def _show_in_tensorboard(adapter: Any, tag: str, step: int, samples: Sequence[ShownSample]) -> None:
    for number, sample in enumerate(samples):
        adapter.writer.add_image(f"{tag}/{number:02d}", as_picture(sample.image), step)
        adapter.writer.add_text(f"{tag}/{number:02d}", _caption(sample), step)


def _show_in_mlflow(adapter: Any, tag: str, step: int, samples: Sequence[ShownSample]) -> None:
    mlflow = importlib.import_module("mlflow")  # not among the locked packages
    folder = f"{tag}/step_{step:06d}"
    for number, sample in enumerate(samples):
        mlflow.log_image(_array(sample), artifact_file=f"{folder}/{number:02d}.png")
    captions = {f"{number:02d}.png": _caption(sample) for number, sample in enumerate(samples)}
    mlflow.log_dict(captions, artifact_file=f"{folder}/captions.json")


def _show_in_trackio(adapter: Any, tag: str, step: int, samples: Sequence[ShownSample]) -> None:
    image = adapter.trackio.Image  # one for each name: a list of them is dropped
    pictures = {f"{tag}/{n:02d}": image(_array(sample), caption=_caption(sample)) for n, sample in enumerate(samples)}
    adapter.log(pictures, step)


def _array(sample: ShownSample) -> Any:
    """uint8 [H, W, 3]."""
    return as_picture(sample.image).permute(1, 2, 0).numpy()


SHOW: dict[str, Callable[[Any, str, int, Sequence[ShownSample]], None]] = {
    "wandb": _show_in_wandb,
    "tensorboard": _show_in_tensorboard,
    "mlflow": _show_in_mlflow,
    "trackio": _show_in_trackio,
}
