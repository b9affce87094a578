"""Where a run starts, for each `trainer.resume_mode`."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.ml.trainer import recorded_runs
from verl_omni.settings_schema import layout, resuming
from verl_omni.trainer import main_diffusion
from verl_omni.trainer.run import checkpoint_origin, checkpoints
from verl_omni.trainer.run.checkpoint_saver import CheckpointSaver
from verl_omni.trainer.run.resumed_settings import describe_changes
from verl_omni.trainer.run.run_folder import RunFolder


def checkpoint(folder: Path, step: int, **settings: Any) -> Path:
    """A checkpoint of a run with these settings."""
    config = OmegaConf.create(settings)

    def write(path: Path) -> None:
        for name, text in checkpoint_origin.of_run(config).files().items():
            (path / name).write_text(text)

    return checkpoints.save(folder, step, write, keep=0, run=1)


def started(
    run_folder: Path, mode: str, path: Path | None = None, **settings: Any
) -> tuple[Path | None, list[dict[str, Any]]]:
    """The checkpoint that a run starts from, and the events of its folder."""
    seen: list[Path | None] = []

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        seen.append(run.checkpoint)

    run_settings = recorded_runs.settings(
        run_folder, resume_mode=mode, resume_from_path=None if path is None else str(path)
    )
    assert recorded_runs.run(OmegaConf.merge(settings, run_settings), train) == main_diffusion.OK
    return seen[0], recorded_runs.events(run_folder)


def test_resume_path_starts_from_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    foreign = checkpoint(tmp_path / "other" / "checkpoints", 6)
    checkpoint(tmp_path / "run" / "checkpoints", 2)
    chosen, events = started(tmp_path / "run", "resume_path", foreign)
    assert chosen == foreign
    assert events[0]["resumed_from"] == 6


def test_a_run_that_is_killed_while_it_replaces_its_checkpoint_resumes_from_it(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "checkpoints", 4)
    saved.rename(saved.with_name(".replaced_step_000004"))
    assert started(tmp_path, "auto")[0] == saved


def test_auto_starts_from_the_last_checkpoint_of_the_run_folder(tmp_path: Path) -> None:
    assert started(tmp_path / "new", "auto")[0] is None
    checkpoint(tmp_path / "run" / "checkpoints", 4)
    last = checkpoint(tmp_path / "run" / "checkpoints", 8)
    chosen, events = started(tmp_path / "run", "auto")
    assert chosen == last
    assert events[0]["resumed_from"] == 8


def test_a_run_that_continues_with_other_settings_of_what_is_learned_says_so(tmp_path: Path) -> None:
    """As a job that is submitted again under its name, with another reward."""

    def settings(rate: float, pictures: str, nodes: int) -> dict[str, Any]:
        optim = {"optim": {"lr": rate, "betas": [0.9, 0.999]}}
        return {
            "actor_rollout_ref": {"actor": optim, "rollout": {"nnodes": nodes}},
            "reward": {"reward_functions": {pictures: {"weight": 1.0}}},
        }

    checkpoint(tmp_path / "checkpoints", 4, **settings(0.1, "red", 1))
    assert all(event["event"] != "warning" for event in started(tmp_path, "auto", **settings(0.1, "red", 2))[1])
    chosen, events = started(tmp_path, "auto", **settings(0.2, "blue", 2))
    assert chosen is not None
    (warning,) = [event for event in events if event["event"] == "warning"]
    assert (warning["reason"], warning["step"]) == ("ResumedWithChanges", 4)
    for text in ("optim.lr was 0.1, is 0.2", "blue.weight was None, is 1.0", "red.weight was 1.0, is None"):
        assert text in warning["message"]
    assert "betas" not in warning["message"]
    names = [
        change.split(" was ")[0] for change in warning["message"].split(": ", 1)[1].split("; ") if " was " in change
    ]
    assert len(names) > 2 and names == sorted(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("actor_rollout_ref", "actor.kl_loss_coef", 0.1),
        ("actor_rollout_ref", "actor.ppo_epochs", 2),
        ("data", "shuffle", False),
        ("reward", "aggregation", "weighted_sum"),
        ("reward", "scorer", "color"),
        ("reward", "scorer_kwargs.color", "blue"),
        ("reward", "reward_model.model_path", "judge"),
        ("data", "val_files", "held-out.jsonl"),
        ("actor_rollout_ref", "rollout.val_kwargs.pipeline.guidance_scale", 4.0),
        ("actor_rollout_ref", "actor.shuffle", True),
        ("actor_rollout_ref", "rollout.rollout_adapter", "old"),
        ("actor_rollout_ref", "actor.fsdp_config.mixed_precision.param_dtype", "bfloat16"),
        ("actor_rollout_ref", "rollout.engine_kwargs.vllm_omni.quantization", "fp8"),
        ("trainer", "v1.separate_async.parameter_sync_step", 2),
    ],
)
def test_what_else_decides_what_is_learned_is_said_too(tmp_path: Path, section: str, name: str, value: Any) -> None:
    checkpoint(tmp_path / "checkpoints", 4)
    changed = OmegaConf.create({})
    OmegaConf.update(changed, name, value)
    _, events = started(tmp_path, "auto", **{section: OmegaConf.to_container(changed)})
    (warning,) = [event for event in events if event["event"] == "warning"]
    assert f"{section}.{name} was None, is {value}" in warning["message"]


def test_a_setting_that_the_version_of_the_checkpoint_did_not_have_differs_unless_it_has_its_default() -> None:
    def changes(clip: float) -> str:
        now = OmegaConf.create({"actor_rollout_ref": {"actor": {"grad_clip": clip}}})
        return describe_changes(OmegaConf.create({}), now, {}, {})

    assert changes(1.0) == ""
    assert changes(0.5) == "actor_rollout_ref.actor.grad_clip was None, is 0.5"


def test_the_settings_that_may_differ_exist() -> None:
    named = {*resuming.MAY_DIFFER, *resuming.LEARNED_BY_TRAINER}
    assert named <= layout.names_of_algorithms()


def settings(rate: float, file: Path) -> DictConfig:
    return OmegaConf.create(
        {"actor_rollout_ref": {"actor": {"optim": {"lr": rate}}}, "data": {"train_files": [str(file)]}}
    )


def written(folder: Path, step: int, rate: float, file: Path) -> Path:
    """A checkpoint with what it was trained with."""
    also = checkpoint_origin.of_run(settings(rate, file)).files()
    workers = SimpleNamespace(save_checkpoint=lambda path: (Path(path) / "weights").touch())
    saver = CheckpointSaver(
        folder,
        workers,
        keep=0,
        background=False,
        deadline_s=1.0,
        event=lambda *_, **__: None,
        may_write=lambda: None,
        also=also,
    )
    saver.save(step)
    return checkpoints.path_of(folder, step)


def test_a_run_is_compared_with_what_its_own_checkpoint_was_trained_with(tmp_path: Path) -> None:
    """Attempts that saved nothing trained nothing; and a checkpoint of another run has that run's settings."""
    (file := tmp_path / "p.jsonl").write_text('{"prompt": "red"}\n')
    checkpoint_path = written(tmp_path / "run" / "checkpoints", 4, 0.1, file)
    for mode, path in (("auto", None), ("auto", None), ("resume_path", checkpoint_path)):
        _, events = started(tmp_path / "run", mode, path, **OmegaConf.to_container(settings(0.2, file)))
        assert "optim.lr was 0.1, is 0.2" in events[-2]["message"], "also where the last attempt had 0.2"
    _, events = started(tmp_path / "run", "auto", **OmegaConf.to_container(settings(0.1, file)))
    assert events[-2]["event"] == "start", "no warning"
    _, events = started(
        tmp_path / "other", "resume_path", checkpoint_path, **OmegaConf.to_container(settings(0.2, file))
    )
    assert events[1]["message"].startswith(
        f"the run starts from {checkpoint_path}, which was trained with other settings: "
    )


@pytest.mark.parametrize(("kind", "warned"), [("constant", False), ("cosine", True)])
def test_a_longer_run_has_another_learning_rate_only_with_a_schedule(tmp_path: Path, kind: str, warned: bool) -> None:
    def settings(steps: int) -> dict[str, Any]:
        return {"actor": {"optim": {"lr_scheduler_type": kind, "total_training_steps": steps}}}

    checkpoint(tmp_path / "checkpoints", 4, actor_rollout_ref=settings(10))
    _, events = started(tmp_path, "auto", actor_rollout_ref=settings(20))
    assert [event["reason"] for event in events if event["event"] == "warning"] == ["ResumedWithChanges"] * warned


def test_a_run_says_that_its_training_files_have_another_content(tmp_path: Path) -> None:
    (file := tmp_path / "p.jsonl").write_text('{"prompt": "red"}\n')
    written(tmp_path / "run" / "checkpoints", 4, 0.1, file)
    for text, changed in (('{"prompt": "red"}\n', False), ('{"prompt": "tan"}\n', True)):
        file.write_text(text)
        _, events = started(tmp_path / "run", "auto", **OmegaConf.to_container(settings(0.1, file)))
        messages = [event["message"] for event in events if event["event"] == "warning"]
        assert ["the content of data.train_files is another" in message for message in messages] == [True] * changed


def test_metrics_of_another_run_are_not_those_of_a_run_from_a_checkpoint_elsewhere(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for checkpoint_of, kept in ((tmp_path / "run" / "checkpoints", [1, 2]), (tmp_path / "other" / "checkpoints", [])):
        for step in (1, 2, 3):
            folder.step({"step": step, "reward/mean": 0.5})
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "rew')  # cut off by a kill
        path = checkpoint(checkpoint_of, 2)
        _, events = started(tmp_path / "run", "resume_path", path)
        assert [line["step"] for line in folder.metrics()] == kept
        start = [event for event in events if event["event"] == "start"][-1]
        assert (start["resumed_from"], start["new_run"]) == (2, not kept)
        folder = RunFolder(tmp_path / "run")


def test_disable_starts_from_nothing_and_keeps_earlier_checkpoints_aside(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint(tmp_path / "checkpoints", 8)
        chosen, events = started(tmp_path, "disable")
        assert chosen is None
        assert checkpoints.steps(tmp_path / "checkpoints") == []
        assert checkpoints.steps(tmp_path / f"checkpoints-{number}") == [8]
    warnings = [event for event in events if event["event"] == "warning"]
    assert [event["reason"] for event in warnings] == ["CheckpointsSetAside"] * 2
    assert str(tmp_path / "checkpoints-2") in warnings[-1]["message"]


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*step_000009; write the path of a folder step_NNNNNN"):
        checkpoints.step_of(tmp_path / "step_000009")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        checkpoints.step_of(tmp_path)


def test_what_only_moved_is_no_change_and_what_was_replaced_in_its_place_is_one(tmp_path: Path) -> None:
    def named(folder: Path, weights: bytes = b"w" * 900_000) -> DictConfig:
        (folder / "model" / ".cache").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "w.safetensors").write_bytes(weights)
        (folder / "model" / ".cache" / "time").write_text(str(folder))
        for name in ("train.jsonl", "test.jsonl", "reward.py", "second.py", "lora"):
            (folder / name).write_text(name)
        return OmegaConf.create(
            {
                "data": {"train_files": [str(folder / "train.jsonl")], "val_files": str(folder / "test.jsonl")},
                "actor_rollout_ref": {
                    "model": {"path": str(folder / "model"), "lora_adapter_path": str(folder / "lora")}
                },
                "reward": {
                    "custom_reward_function": {"path": str(folder / "reward.py"), "name": "f"},
                    "reward_functions": {"second": {"path": str(folder / "second.py")}, "jpeg": {"weight": 0.5}},
                },
            }
        )

    def described(earlier: checkpoint_origin.CheckpointOrigin, config: DictConfig) -> str:
        now = checkpoint_origin.of_run(config)
        return describe_changes(earlier.settings, now.settings, earlier.content, now.content)

    before = checkpoint_origin.of_run(named(tmp_path / "a"))
    assert described(before, named(tmp_path / "b")) == ""
    changed = b"w" * 600_000 + b"x" * 40_000 + b"w" * 260_000
    assert described(before, named(tmp_path / "a", changed)) == "the content of actor_rollout_ref.model.path is another"
    moved = named(tmp_path / "b", changed)
    assert described(before, moved) == (
        f"actor_rollout_ref.model.path was {tmp_path / 'a' / 'model'}, is {tmp_path / 'b' / 'model'}"
    )
    unknown = checkpoint_origin.CheckpointOrigin(before.settings, {})
    assert described(unknown, moved).count(" was ") == 6, "without digests, paths are compared"
    now = named(tmp_path / "a")
    for name in ("second.py", "lora"):
        (tmp_path / "a" / name).write_text("edited")
    assert described(before, now) == (
        "the content of actor_rollout_ref.model.lora_adapter_path is another; "
        "the content of reward.reward_functions.second.path is another"
    )


def test_the_origin_of_a_checkpoint_has_the_values_of_its_settings_and_only_of_settings(tmp_path: Path) -> None:
    config = OmegaConf.create({"data": {"train_files": "p.jsonl", "seed": "${trainer.seed}"}, "trainer": {"seed": 7}})
    for name, text in checkpoint_origin.of_run(config).files().items():
        (tmp_path / name).write_text(text)
    origin = checkpoint_origin.read(tmp_path)
    assert origin is not None
    assert (origin.settings.data.seed, origin.content) == (7, {"data.train_files": [None]})
    assert "${" not in (tmp_path / checkpoint_origin.SETTINGS).read_text()
    (tmp_path / checkpoint_origin.SETTINGS).write_text("[1, 2]")
    assert checkpoint_origin.read(tmp_path) is None
