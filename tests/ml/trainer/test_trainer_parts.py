"""What the trainer decides and writes, without an engine."""

import contextlib
import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from verl_omni.trainer.generation.shown_samples import choose
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.run_folder import RunFolder, ShownSample, write_samples


def test_a_checkpoint_is_complete_or_absent(tmp_path: Path) -> None:
    def good(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "state" / "weights").write_text("w")

    def bad(folder: Path) -> None:
        good(folder)
        raise OSError("disk full")

    checkpoints.save(tmp_path, 1, good, keep=2, run=1)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(tmp_path, 2, bad, keep=2, run=1)
    assert checkpoints.steps(tmp_path) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    (tmp_path / ".writing_step_000003").mkdir()  # what a SIGKILL leaves
    for step in (3, 4, 5):
        checkpoints.save(tmp_path, step, good, keep=2, run=1)
    assert checkpoints.steps(tmp_path) == [4, 5]
    assert (checkpoints.path_of(tmp_path, 5) / "state" / "weights").read_text() == "w"


def write_weights(folder: Path) -> None:
    (folder / "weights").write_text("w" * 10)


@pytest.mark.parametrize("keep", [0, -1])
def test_all_checkpoints_are_kept_unless_a_number_is_given(tmp_path: Path, keep: int) -> None:
    for step in (1, 2, 3):
        checkpoints.save(tmp_path, step, write_weights, keep=keep, run=1)
    assert checkpoints.steps(tmp_path) == [1, 2, 3]


def test_an_incomplete_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="step 3 has no files"):
        checkpoints.save(tmp_path, 3, lambda folder: None, keep=0, run=1)
    for step in (1, 2, 4):
        checkpoints.save(tmp_path, step, write_weights, keep=0, run=1)
    (tmp_path / "step_000005").mkdir()
    (tmp_path / "step_000004" / "weights").write_text("w" * 9)
    (tmp_path / "step_000002" / checkpoints.MANIFEST).unlink()
    assert checkpoints.steps(tmp_path) == [1]
    assert checkpoints.latest(tmp_path) == tmp_path / "step_000001"
    for step in (2, 4, 5):
        with pytest.raises(FileNotFoundError, match="is not complete"):
            checkpoints.step_of(checkpoints.path_of(tmp_path, step))


def test_a_new_run_in_a_used_folder_keeps_its_own_checkpoints(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoints.save(
            tmp_path, step, write_weights, keep=2, run=checkpoints.run_number(tmp_path, None) if step == 10 else 1
        )
    foreign = checkpoints.save(tmp_path / "elsewhere", 5, write_weights, keep=0, run=1)
    run = checkpoints.run_number(tmp_path, foreign)
    for step in (6, 7, 8):
        last = checkpoints.save(tmp_path, step, write_weights, keep=2, run=run)
    assert checkpoints.steps(tmp_path) == [7, 8, 20, 30], "the earlier run's checkpoints stay"
    assert checkpoints.latest(tmp_path) == last, "a restart resumes this run, not the earlier one"
    assert checkpoints.run_number(tmp_path, last) == run == 2


def test_a_manifest_lists_files_and_not_folders_whose_sizes_differ_between_volumes(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        write_weights(folder)
        (folder / "state").mkdir()
        write_weights(folder / "state")

    saved = checkpoints.save(tmp_path, 1, write, keep=0, run=1)
    manifest = json.loads((saved / checkpoints.MANIFEST).read_text())
    assert manifest == {"step": 1, "run": 1, "files": {"weights": 10, "state/weights": 10}}


def test_a_checkpoint_is_on_disk_before_it_has_its_name_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(
        os, "fsync", lambda descriptor: calls.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
    )
    monkeypatch.setattr(os, "replace", replace)
    checkpoints.save(tmp_path, 1, write_weights, keep=0, run=1)
    assert calls == [checkpoints.MANIFEST, "weights", ".writing_step_000001", "rename", tmp_path.name]


@pytest.mark.parametrize(("renames", "expected"), [(1, "weights"), (2, "other"), (3, "other")])
def test_a_run_that_is_killed_while_it_replaces_a_checkpoint_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, expected: str
) -> None:
    """Killed before the replaced one is renamed, before the new one is, or at the end."""
    checkpoints.save(tmp_path, 1, write_weights, keep=1, run=1)
    left = iter(range(1, renames))
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    (checkpoints.begin(tmp_path, 1) / "other").touch()
    with contextlib.suppress(KeyboardInterrupt):
        checkpoints.complete(tmp_path, 1, keep=1, run=1)
    monkeypatch.undo()
    checkpoints.recover(tmp_path)
    newest = checkpoints.latest(tmp_path)
    assert newest is not None and (newest / expected).is_file()


def test_a_stale_sample_stops_the_run() -> None:
    """Fault 4."""
    step_metrics.check_versions([3, 3], 3)
    with pytest.raises(step_metrics.StaleSample, match="1 of 2 samples carry weight version"):
        step_metrics.check_versions([3, None], 3)


def test_a_replica_with_another_weight_version_stops_the_run() -> None:
    assert step_metrics.replica_versions([3, 3], 3) == {
        "weights/min_replica_version": 3,
        "weights/max_replica_version": 3,
    }
    assert step_metrics.replica_versions([], 3) == {}, "standalone replicas may all be lost after an update"
    for served in ([3, 2], [None, 3]):
        with pytest.raises(step_metrics.StaleReplica, match="published weight version 3, but the replicas serve"):
            step_metrics.replica_versions(served, 3)


def test_the_remaining_time_is_that_of_the_median_of_the_last_ten_steps() -> None:
    assert step_metrics.eta([9.0, *[1.0] * 5, *[3.0] * 5], 4) == 8.0
    assert step_metrics.eta([2.0], 0) == 0
    assert step_metrics.eta([], 4) is None


def test_samples_and_numbers_that_are_not_finite(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.samples(3, [ShownSample("a cat", 7, 0.5, torch.zeros(3, 4, 4, dtype=torch.uint8))], 24)
    index = json.loads((tmp_path / "samples/step_000003/index.json").read_text())
    assert index == [{"file": "00.png", "prompt": "a cat", "seed": 7, "score": 0.5, "kind": "prompt"}]
    folder.step({"step": 1, "x": float("nan"), "y": torch.tensor(2.0)})  # type: ignore[dict-item]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "x": None, "y": 2.0}


@pytest.mark.parametrize(("frames", "shown"), [(1, [0]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (9, [0, 3, 5, 8])])
def test_a_video_is_saved_as_a_row_of_frames_with_first_and_last(tmp_path: Path, frames: int, shown: list[int]) -> None:
    video = torch.arange(frames, dtype=torch.uint8).view(frames, 1, 1, 1).expand(frames, 3, 2, 5)
    RunFolder(tmp_path).samples(1, [ShownSample("a walk", 0, 0.5, video)], 8)
    with Image.open(tmp_path / "samples" / "step_000001" / "00.png") as picture:
        assert picture.size == (5 * len(shown), 2)
        assert [picture.getpixel((5 * number, 0)) for number in range(len(shown))] == [(f, f, f) for f in shown]


def test_a_video_is_saved_as_a_file_that_plays(tmp_path: Path) -> None:
    levels = torch.tensor([0, 60, 120, 180, 240], dtype=torch.uint8)
    video = levels.view(5, 1, 1, 1).expand(5, 3, 32, 48)
    samples = [ShownSample("a walk", 0, 0.5, video), ShownSample("a cat", 1, 0.5, video[0])]
    RunFolder(tmp_path).samples(1, samples, 8)
    folder = tmp_path / "samples" / "step_000001"
    index = json.loads((folder / "index.json").read_text())
    assert [entry.get("video") for entry in index] == ["00.webp", None]
    write_samples(tmp_path, 3, samples, None, 8)
    lines = [json.loads(line) for line in (tmp_path / "3.jsonl").read_text().splitlines()]
    assert [line.get("video") for line in lines] == ["3/0000.webp", None]
    for path in (folder / "00.webp", tmp_path / "3" / "0000.webp"):
        with Image.open(path) as played:
            assert (played.format, played.size, played.n_frames, played.info["loop"]) == ("WEBP", (48, 32), 5, 0)  # type: ignore[attr-defined]
            for frame, level in enumerate(levels.tolist()):
                played.seek(frame)
                shown = played.convert("RGB").getpixel((20, 10))
                assert all(abs(shade - level) <= 4 for shade in shown)  # type: ignore[union-attr,operator]
                assert played.info["duration"] == 125


def test_an_edited_image_is_saved_after_its_input(tmp_path: Path) -> None:
    edited = torch.full((3, 4, 4), 9, dtype=torch.uint8)
    before = Image.new("RGB", (16, 8), "red")
    RunFolder(tmp_path).samples(1, [ShownSample("a cat", 0, 0.5, edited, [before])], 24)
    with Image.open(tmp_path / "samples" / "step_000001" / "00.png") as picture:
        assert picture.size == (8 + 4, 4)
        assert [picture.getpixel((x, 1)) for x in (0, 7, 8)] == [(255, 0, 0), (255, 0, 0), (9, 9, 9)]


def test_images_are_kept_of_evenly_spaced_prompts_and_of_none_twice() -> None:
    picture = torch.zeros((3, 4, 4), dtype=torch.uint8)
    samples = [ShownSample(prompt, seed, 0.0, picture) for seed, prompt in enumerate("abacbdef")]
    assert [sample.seed for sample in choose(samples, 8)] == [0, 1, 3, 5, 6, 7]
    assert [sample.seed for sample in choose(samples, 3)] == [0, 3, 6]
    assert choose(samples, 0) == []
