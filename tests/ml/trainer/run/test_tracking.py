"""The metrics of a step reach verl's trackers."""

import io
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from tests.ml import smallest_job
from verl_omni.settings_schema.declarations import TRACKERS_WITH_IMAGES
from verl_omni.trainer.metrics.step_recorder import StepRecorder
from verl_omni.trainer.run import trackers
from verl_omni.trainer.run.run_folder import PREVIEW, RunFolder, ShownSample
from verl_omni.trainer.settings import configuration


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in ("TENSORBOARD_DIR", "VERL_FILE_LOGGER_PATH", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(variable, "")  # so that what the trainer sets is undone
        monkeypatch.delenv(variable)
    return smallest_job.load("trainer.logger=[console,tensorboard]", "trainer.log_val_generations=2")


def tensorboard(folder: Path) -> Any:
    """What TensorBoard reads in a run folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
    return events.Reload()


def test_the_console_and_tensorboard_get_every_metric(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracking = trackers.open_trackers(config, tmp_path)
    assert tracking is not None
    recorder = StepRecorder(RunFolder(tmp_path), total=2, tracking=tracking)
    for step in (1, 2):
        recorder.record({"step": step, "weights/version": step, "reward/mean": 0.25 * step})
    tracking.finish()
    assert "step:2 - " in capsys.readouterr().out
    means = tensorboard(tmp_path).Scalars("reward/mean")
    assert [(event.step, event.value) for event in means] == [(1, 0.25), (2, 0.5)]


@pytest.mark.parametrize(("first", "expected"), [(3, [1, 2, 30, 40]), (0, [30, 40])], ids=["resumed", "new"])
def test_files_of_an_earlier_attempt_keep_the_steps_that_are_not_repeated(
    config: Any, tmp_path: Path, first: int, expected: list[int]
) -> None:
    config.trainer.logger = ["tensorboard", "file"]
    for attempt, begin, values in ((1, 0, {1: 1, 2: 2, 3: 3}), (2, first, {3: 30, 4: 40})):
        tracking = trackers.open_trackers(config, tmp_path, first=begin)
        assert tracking is not None
        for step, value in values.items():
            tracking.log({"reward": float(value)}, step)
        tracking.finish()
        if attempt == 1:
            with (tmp_path / "tracking.jsonl").open("a") as file:
                file.write('{"step": 4, "da')  # cut off by a kill
    assert [event.value for event in tensorboard(tmp_path).Scalars("reward")] == expected
    lines = [json.loads(line) for line in (tmp_path / "tracking.jsonl").read_text().splitlines()]
    assert [line["data"]["reward"] for line in lines] == expected


def test_no_tracker_is_opened_unless_one_is_named(tmp_path: Path) -> None:
    assert trackers.open_trackers(smallest_job.load(), tmp_path) is None


def held_out(count: int) -> list[ShownSample]:
    """Pictures that differ in their red channel, and a video."""
    pictures = [torch.zeros(3, 8, 8, dtype=torch.uint8) for _ in range(count)]
    for number, picture in enumerate(pictures):
        picture[0] = 10 * number
    samples = [
        ShownSample(f"prompt {number}", 40 + number, 0.5 * number, picture) for number, picture in enumerate(pictures)
    ]
    return [*samples, ShownSample("a walk", 7, 1.0, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))]


def test_tensorboard_shows_held_out_pictures_with_their_prompts(config: Any, tmp_path: Path) -> None:
    tracking = trackers.open_trackers(config, tmp_path)
    assert tracking is not None and tracking.pictures == 2
    pixels = torch.zeros(3, 8, 16, dtype=torch.uint8)
    preview = ShownSample("p", 3, 0.75, pixels, kind=PREVIEW, training_score=0.25)
    tracking.show(20, [*held_out(2), preview])
    tracking.show(40, [])
    tracking.finish()
    events = tensorboard(tmp_path)
    (shown,) = events.Images("val/generations/01")
    with Image.open(io.BytesIO(shown.encoded_image_string)) as picture:
        assert (shown.step, picture.size, picture.getpixel((0, 0))) == (20, (8, 8), (10, 0, 0))
    (pair,) = events.Images("train/previews/00")
    assert (pair.width, pair.height) == (16, 8), "training and evaluation side by side"
    (text,) = events.Tensors("train/previews/00/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "p (seed 3, training score 0.25 | evaluation score 0.75)"
    (video,) = events.Images("val/generations/02")
    assert (video.width, video.height) == (16, 8), "the frames side by side"
    (caption,) = events.Tensors("val/generations/01/text_summary")
    assert caption.tensor_proto.string_val[0].decode() == "prompt 1 (seed 41, score 0.5)"


class RecordingMlflow(types.ModuleType):
    """The functions of MLflow that pictures use."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.kept: dict[str, Any] = {}

    def log_image(self, image: Any, artifact_file: str) -> None:
        """Keep the picture."""
        self.kept[artifact_file] = image

    def log_dict(self, dictionary: dict[str, str], artifact_file: str) -> None:
        """Keep the captions."""
        self.kept[artifact_file] = dictionary


def test_mlflow_gets_pictures_as_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow itself is not installed here: this is what its documented functions are called with."""
    mlflow = RecordingMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    trackers.Trackers(SimpleNamespace(logger={"mlflow": None, "console": None}), pictures=2).show(20, held_out(1))
    folder = "val/generations/step_000020"
    assert sorted(mlflow.kept) == [f"{folder}/00.png", f"{folder}/01.png", f"{folder}/captions.json"]
    assert mlflow.kept[f"{folder}/00.png"].shape == (8, 8, 3) and mlflow.kept[f"{folder}/00.png"].dtype == "uint8"
    assert mlflow.kept[f"{folder}/captions.json"]["00.png"] == "prompt 0 (seed 40, score 0)"


def test_trackio_gets_each_picture_under_a_name_of_its_own() -> None:
    """trackio itself is not installed here: this is what its documented functions are called with."""
    logged: dict[str, Any] = {}
    trackio = SimpleNamespace(Image=lambda value, caption: (value.shape, caption))
    adapter = SimpleNamespace(trackio=trackio, log=lambda data, step: logged.update({"step": step, **data}))
    trackers.Trackers(SimpleNamespace(logger={"trackio": adapter}), pictures=2).show(20, held_out(1))
    assert sorted(logged) == ["step", "val/generations/00", "val/generations/01"] and logged["step"] == 20
    assert logged["val/generations/00"] == ((8, 8, 3), "prompt 0 (seed 40, score 0)")


def test_every_tracker_that_is_accepted_for_pictures_shows_them() -> None:
    assert set(trackers.SHOW) == set(TRACKERS_WITH_IMAGES)


@pytest.mark.parametrize("logger", ["[]", "[console]"])
def test_pictures_without_a_tracker_that_shows_them_have_no_effect(logger: str) -> None:
    """A recipe asks for them, and another tracker is chosen for a run; verl shows none then."""
    overrides = [*smallest_job.REQUIRED, f"trainer.logger={logger}", "trainer.log_val_generations=2"]
    reason = "trainer.logger shows no pictures; wandb, tensorboard, mlflow, trackio do"
    assert configuration.without_effect(overrides, configuration.load(overrides)) == {
        "trainer.log_val_generations": reason
    }
    for setting in ("trainer.log_val_generations=0", "trainer.logger=[console,tensorboard]"):
        changed = [*overrides, setting]
        assert configuration.without_effect(changed, configuration.load(changed)) == {}


def test_a_tracker_that_did_not_start_is_an_error(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl warns and goes on without MLflow when its server does not answer."""
    from verl.utils import tracking

    closed: list[bool] = []
    started = SimpleNamespace(logger={"console": None}, finish=lambda: closed.append(True))
    monkeypatch.setattr(tracking, "Tracking", lambda *arguments: started)
    with pytest.raises(trackers.TrackerNotOpened, match="tensorboard did not start"):
        trackers.open_trackers(config, tmp_path)
    assert closed == [True]


@pytest.mark.slow
def test_wandb_gets_metrics_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Offline: its files are in the run folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config.trainer.logger = ["wandb"]
    tracking = trackers.open_trackers(config, tmp_path)
    assert tracking is not None
    tracking.show(1, held_out(3)[:3])
    tracking.log({"reward/mean": 0.5, "step": 1}, step=1)
    tracking.finish()
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert len(list(run.glob("files/media/images/val/generations_*.png"))) == 3
    assert list(run.glob("*.wandb"))
