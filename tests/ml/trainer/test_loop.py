"""The training loop with an agent loop and workers that answer at once."""

import contextlib
import gc
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensordict import TensorDict
from verl import DataProto

from tests.ml.trainer.recorded_runs import events
from tests.ml.trainer.runs_in_memory import RunInMemory, job_in_memory, prompt_rows, run_in_memory
from verl_omni.agent_loop.rows import SampleFailed, SampleLost
from verl_omni.agent_loop.sampling import row_params
from verl_omni.reward_loop.scorer_results import TooManyUnscored
from verl_omni.samples import GENERATED, Sample
from verl_omni.trainer.data.prompt_images import ImageNotFound
from verl_omni.trainer.generation import sample_generation, verl_batches
from verl_omni.trainer.generation.training_batches import GeneratedBatch
from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.run_folder import RunFolder, TakenOver
from verl_omni.trainer.run.step_checkpoints import Interrupted
from verl_omni.utils.columns import objects
from verl_omni.utils.seeds import sample_seeds

pytestmark = pytest.mark.slow  # composes all settings for each

ROWS = prompt_rows(["a red circle", "a blue square"])


@dataclass
class AnsweringAgentLoop:
    """Answers with latents, and a recorded trajectory for training; `asked` gets the prompts of each batch before."""

    asked: Callable[[DataProto], None] = lambda prompts: None

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        self.asked(prompts)
        rows = len(prompts)
        tensors = {
            "responses": torch.rand(rows, 3, 4, 4),
            "rm_scores": torch.arange(rows).float().unsqueeze(-1),
            "rollout_log_probs": torch.zeros(rows, 1),
        }
        if prompts.meta_info.get("carry_responses") is False:
            del tensors["responses"]
        sample = Sample(version=prompts.meta_info["global_steps"])
        columns = {**prompts.non_tensor_batch, GENERATED: objects([sample] * rows)}
        return DataProto(batch=TensorDict(tensors, batch_size=rows), non_tensor_batch=columns)


class AnsweringWorkers:
    """Two ranks; counts the optimizer steps that it is told to take; `asked` gets the request of each update before."""

    def __init__(self, optimizer_steps: float) -> None:
        self.asked: Callable[[DataProto], None] = lambda data: None
        self.optimizer_steps = optimizer_steps
        self.writes_fast = False
        self.started = 0

    def update_actor(self, data: DataProto) -> DataProto:
        self.asked(data)
        metrics = {"actor/optimizer_steps": [self.optimizer_steps] * 2, "actor/ratio_max": [1.0, 3.0]}
        metrics |= {"actor/loss": [1.0, 2.0]}
        return DataProto(meta_info={"metrics": metrics})

    def save_checkpoint(self, folder: str) -> None:
        (Path(folder) / "weights").write_text("w")

    def load_checkpoint(self, folder: str) -> None:
        assert (Path(folder) / "weights").is_file()

    def save_adapter(self, folder: str) -> None:
        (Path(folder) / "lora").mkdir()
        (Path(folder) / "lora" / "weights").write_text("w")

    def start_checkpoint(self, folder: str) -> None:
        self.folder = Path(folder)
        self.started = self.started + 1

    def finish_checkpoint(self, wait_s: float) -> list[bool]:
        """Without waiting, the write ends only if `writes_fast` is set."""
        ended = self.writes_fast or wait_s > 0
        if ended:
            (self.folder / "weights").write_text("w")
        return [True, ended]


def trainer(
    folder: Path, *overrides: str, optimizer_steps: float = 1.0, rows: Any = ROWS, held_out: Any = ROWS
) -> RunInMemory:
    config = job_in_memory("trainer.total_training_steps=2", *overrides)
    published: list[int] = []

    def publish(global_steps: int) -> None:
        published.append(global_steps)

    weights = SimpleNamespace(update_weights=publish, sleep_replicas=lambda: None)
    stack = SimpleNamespace(
        agent_loop=AnsweringAgentLoop(),
        workers=AnsweringWorkers(optimizer_steps),
        weights=weights,
        versions=lambda: published[-1:],
        pool=None,
        judges=None,
    )
    return run_in_memory(config, stack, folder, rows, held_out)


class ShowingAgentLoop(AnsweringAgentLoop):
    """Answers with pixels; a training batch returns them for the requests that keep them."""

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        samples = super().generate_sequences(prompts)
        rows = len(prompts)
        if "responses" in samples.batch:
            samples.batch["responses"] = torch.full((rows, 3, 8, 8), 200, dtype=torch.uint8)
        kept = prompts.non_tensor_batch.get("_keeps_picture", [False] * rows)
        column = samples.non_tensor_batch[GENERATED]
        for row in range(rows):
            if kept[row]:
                column[row] = replace(column[row], picture=torch.full((3, 4, 4), 10 * row, dtype=torch.uint8))
        return samples


def test_training_images_are_shown_beside_the_evaluations_of_the_same_prompt_and_seed(tmp_path: Path) -> None:
    running = trainer(tmp_path, "trainer.test_freq=2", "trainer.val_before_train=false")
    evaluated: list[list[int]] = []

    def note(prompts: DataProto) -> None:
        if prompts.meta_info.get("validate"):
            evaluated.append([int(seed) for seed in prompts.non_tensor_batch["seed"]])

    running.stack.agent_loop = ShowingAgentLoop()
    running.stack.agent_loop.asked = note
    running.fit(None)
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == ["step_000002"]
    index = json.loads((tmp_path / "samples/step_000002/index.json").read_text())
    previews = [entry for entry in index if entry["kind"] == "preview"]
    prompts = [entry["prompt"] for entry in index if entry["kind"] == "prompt"]
    assert sorted(entry["prompt"] for entry in previews) == sorted(prompts)
    assert [entry["training_score"] for entry in previews] == [0.0, 2.0], "the first of two samples of each prompt"
    requests = sample_generation.training_requests(ROWS, n=2, step=2, version=1, seed=0)
    assert requests.seed is not None
    assert evaluated[1] == [entry["seed"] for entry in previews]
    assert evaluated[1] == [sample_seeds(requests.seed, row, 2, same_noise=False)["seed"] for row in (0, 2)]
    pair = np.asarray(Image.open(tmp_path / "samples/step_000002" / previews[1]["file"]))
    assert pair.shape == (8, 16, 3)
    assert pair[:, :8].max() == 20 and pair[:, 8:].min() == 200, "enlarged to the size of the evaluation's"
    assert [event.get("images_folder") for event in events(tmp_path, "step")] == [None, "samples/step_000002"]
    line = running.folder.metrics()[-1]
    assert line["val/n"] == len(ROWS), "previews are in no metric"


@pytest.mark.parametrize(
    ("error", "saved"),
    [
        (SampleFailed("row 3 failed: TooManyUnscored: the reward server does not respond"), [2]),
        (TooManyUnscored("4 samples have no score"), [2]),
        (ImageNotFound("row 3 of train.jsonl, column images: a.png: the file is damaged"), [2]),
        (SampleLost("row 3 failed: a process has ended"), []),
        (ValueError("a fault of this package"), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_whose_samples_fail_saves_its_last_complete_step(
    tmp_path: Path, error: Exception, saved: list[int]
) -> None:
    running = trainer(tmp_path, "trainer.total_training_steps=4", "trainer.save_freq=0", "trainer.test_freq=0")

    def fail(prompts: DataProto) -> None:
        if prompts.meta_info["global_steps"] == 2:
            raise error

    running.stack.agent_loop.asked = fail
    with pytest.raises(type(error)):
        running.fit(None)
    assert checkpoints.steps(tmp_path / "checkpoints") == saved


def test_previews_that_cannot_be_scored_are_shown_and_do_not_stop_the_run(tmp_path: Path) -> None:
    running = trainer(tmp_path, "trainer.test_freq=2", "trainer.val_before_train=false")
    allowed: list[int] = []

    class Scoring(ShowingAgentLoop):
        """Scores the samples of evaluations, but not of the previews after them."""

        def generate_sequences(self, prompts: DataProto) -> DataProto:
            samples = super().generate_sequences(prompts)
            if prompts.meta_info.get("validate"):
                allowed.append(prompts.meta_info["failures_allowed"])
                if len(allowed) == 2:
                    samples.batch["rm_scores"][:] = torch.nan
            return samples

    running.stack.agent_loop = Scoring()
    running.fit(None)
    assert allowed == [1, len(ROWS)], "agent loops fail a batch with more"
    index = json.loads((tmp_path / "samples/step_000002/index.json").read_text())
    previews = [entry for entry in index if entry["kind"] == "preview"]
    assert [(entry["training_score"], entry["score"]) for entry in previews] == [(0.0, None), (2.0, None)]
    assert "val/reward/unscored" not in running.folder.metrics()[-1]


@pytest.mark.parametrize("group", ["pipeline", "val_kwargs.pipeline"])
def test_an_evaluation_of_latents_has_scores_and_no_pictures(tmp_path: Path, group: str) -> None:
    trainer(tmp_path, f"actor_rollout_ref.rollout.{group}.output_type=latent").fit(None)
    lines: list[dict[str, Any]] = RunFolder(tmp_path).metrics()
    assert [line["step"] for line in lines if "val/reward/mean" in line] == [0, 2]
    assert lines[0]["val/reward/mean"] == 0.5 and lines[0]["val/n"] == 2
    assert not (tmp_path / "samples").exists()


@pytest.mark.parametrize(("fast", "order"), [(True, [1, 2, 3, -2, 4, -4]), (False, [1, 2, 3, 4, -2, -4])])
def test_a_checkpoint_in_the_background_is_complete_after_a_later_step_and_written_once(
    tmp_path: Path, fast: bool, order: list[int]
) -> None:
    """In the order, checkpoints have the negative numbers of their steps."""
    running = trainer(
        tmp_path,
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
        "data.val_files=null",
        "actor_rollout_ref.actor.checkpoint.async_save=true",
    )
    running.stack.workers.writes_fast = fast
    running.fit(None)
    steps = [event["step"] * (1 if event["event"] == "step" else -1) for event in events(tmp_path)]
    assert [step for step in steps if step] == order
    assert checkpoints.steps(tmp_path / "checkpoints") == [2, 4]
    assert running.stack.workers.started == 2


ADAPTERS = ("trainer.adapter_save_freq=1", "trainer.save_freq=0", "trainer.total_training_steps=4")


def test_adapters_are_saved_at_their_own_cadence_and_the_newest_are_kept(tmp_path: Path) -> None:
    trainer(tmp_path, *ADAPTERS, "trainer.max_adapters_to_keep=2", "data.val_files=null").fit(None)
    assert checkpoints.steps(tmp_path / "checkpoints") == [4], "only at the end"
    assert checkpoints.steps(tmp_path / "adapters") == [3, 4]
    saved = events(tmp_path, "adapter")
    assert [event["step"] for event in saved] == [1, 2, 3, 4]
    assert (Path(saved[-1]["path"]) / "lora" / "weights").is_file()


def test_a_resumed_run_keeps_the_adapters_that_it_saves(tmp_path: Path) -> None:
    """Its earlier attempt has left adapters of later steps, which are not newer."""
    settings = ("trainer.max_adapters_to_keep=2", "trainer.max_actor_ckpt_to_keep=9", "data.val_files=null")
    trainer(tmp_path, *ADAPTERS, "trainer.save_freq=1", *settings).fit(None)
    for step in (2, 3, 4):  # the attempt was killed before it saved these
        shutil.rmtree(checkpoints.path_of(tmp_path / "checkpoints", step))
    resumed = trainer(tmp_path, *ADAPTERS, *settings, "trainer.total_training_steps=2")
    resumed.fit(checkpoints.path_of(tmp_path / "checkpoints", 1))
    assert checkpoints.steps(tmp_path / "adapters") == [2, 3, 4]
    assert (Path(events(tmp_path, "adapter")[-1]["path"]) / "lora" / "weights").is_file()
    trainer(tmp_path, *ADAPTERS, *settings).fit(checkpoints.path_of(tmp_path / "checkpoints", 2))
    assert checkpoints.steps(tmp_path / "adapters") == [3, 4]


def test_a_step_counts_its_samples_and_no_more_time_than_passes(tmp_path: Path) -> None:
    began = time.perf_counter()
    trainer(tmp_path).fit(None)
    passed = time.perf_counter() - began
    assert [event["samples"] for event in events(tmp_path, "step")] == [0, 4, 8]
    lines = [line for line in RunFolder(tmp_path).metrics() if line["step"] > 0]
    assert 0 < sum(line["timing_s/step"] for line in lines) <= passed
    assert [line["images_per_s"] for line in lines] == [pytest.approx(4 / line["timing_s/step"]) for line in lines]


def test_the_driver_has_as_many_objects_after_200_steps_as_after_50(tmp_path: Path) -> None:
    """Objects that the garbage collector tracks, such as tensors, lists and dicts: one of each step would be 150."""
    running = trainer(tmp_path, "trainer.total_training_steps=200", "trainer.save_freq=50", "trainer.test_freq=50")
    running.stack.agent_loop = ShowingAgentLoop()
    publish = running.stack.weights.update_weights
    objects: dict[int, int] = {}

    def publishing(global_steps: int) -> None:
        if global_steps in (50, 200):
            gc.collect()
            objects[global_steps] = len(gc.get_objects())
        publish(global_steps)

    running.stack.weights.update_weights = publishing
    running.fit(None)
    assert objects[200] - objects[50] < 100


def test_samples_of_steps_and_evaluations_are_written_where_asked(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn"
    evaluated = tmp_path / "evaluated"
    trainer(
        tmp_path / "run",
        f"trainer.rollout_data_dir={drawn}",
        "trainer.rollout_data_save_freq=2",
        "trainer.rollout_data_max_samples=3",
        f"trainer.validation_data_dir={evaluated}",
        "trainer.test_freq=1",
    ).fit(None)
    assert sorted(path.name for path in drawn.iterdir()) == ["2", "2.jsonl"], "every second step"
    lines = [json.loads(line) for line in (drawn / "2.jsonl").read_text().splitlines()]
    assert [line["score"] for line in lines] == [0.0, 1.0, 2.0], "at most three samples"
    assert all(line["step"] == 2 and line["input"] in ("a red circle", "a blue square") for line in lines)
    assert len({line["seed"] for line in lines}) == 3
    for line in lines:
        with Image.open(drawn / line["output"]) as picture:
            assert picture.size == (4, 4)
    assert sorted(path.name for path in evaluated.glob("*.jsonl")) == ["0.jsonl", "1.jsonl", "2.jsonl"]
    evaluations = [(evaluated / f"{step}.jsonl").read_text().splitlines() for step in range(3)]
    assert [[json.loads(line)["version"] for line in lines] for lines in evaluations] == [[0, 0], [1, 1], [2, 2]]
    assert [line["version"] for line in lines] == [1, 1, 1], "the weights that generated them"


def test_samples_from_the_same_noise_are_written_with_both_of_their_seeds(tmp_path: Path) -> None:
    name = "actor_rollout_ref.rollout.algo"
    running = trainer(tmp_path / "run", f"trainer.rollout_data_dir={tmp_path}", f"{name}.init_same_noise=true")
    requests = sample_generation.training_requests(ROWS, n=2, step=1, version=0, seed=running.config.trainer.seed)
    prompts = verl_batches.requests_to_verl(requests)
    requested = row_params(running.config.actor_rollout_ref.rollout, prompts.meta_info, 4, prompts.non_tensor_batch)
    running.loop.batches.generate(1, 0)
    lines = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()]
    for name in ("seed", "sde_noise_seed"):
        assert [line[name] for line in lines] == [row[name] for row in requested]


def test_the_seed_of_the_rollout_determines_the_noise_of_samples_and_is_that_of_the_run_unless_given(
    tmp_path: Path,
) -> None:
    def seeds(*overrides: str) -> list[int]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        trainer(
            folder / "run", f"trainer.rollout_data_dir={folder}", "trainer.seed=3", *overrides
        ).loop.batches.generate(1, 0)
        return [json.loads(line)["seed"] for line in (folder / "1.jsonl").read_text().splitlines()]

    name = "actor_rollout_ref.rollout.seed"
    assert seeds() == seeds(f"{name}=3") == seeds(f"{name}=null")
    assert not set(seeds(f"{name}=42")) & set(seeds())


def test_no_two_updates_of_runs_with_neighbouring_seeds_share_draws(tmp_path: Path) -> None:
    """What an update itself draws: the noise levels of DiffusionNFT, and the steps of `timestep_fraction`."""
    drawn: list[int] = []
    for seed in (0, 1):
        running = trainer(tmp_path / str(seed), f"trainer.seed={seed}", "algorithm.timestep_fraction=0.5")
        running.stack.workers.asked = lambda request: drawn.extend(request.batch["draw_seeds"].tolist())
        for step in (1, 2, 3):
            batch = GeneratedBatch(step, step - 1, running.loop.batches.generate(step, 0))
            running.loop.update.train_on(batch)
    assert len(drawn) == len(set(drawn)) == 2 * 3 * 4


def test_a_held_out_row_is_drawn_and_shown_with_a_seed_of_its_own(tmp_path: Path) -> None:
    held_out = [{**ROWS[0], "seed": 1234}, {**ROWS[1], "seed": None}]
    running = trainer(tmp_path, "actor_rollout_ref.rollout.val_kwargs.seed=9", held_out=held_out)
    seen: list[int] = []

    def note(prompts: DataProto) -> None:
        rollout = running.config.actor_rollout_ref.rollout
        columns = prompts.non_tensor_batch
        seen.extend(row["seed"] for row in row_params(rollout, prompts.meta_info, len(prompts), columns))

    running.stack.agent_loop.asked = note
    running.loop.evaluation.evaluate(0)
    shown = json.loads((tmp_path / "samples" / "step_000000" / "index.json").read_text())
    assert seen[:2] == [sample["seed"] for sample in shown] == [1234, 10]


def test_rows_of_a_data_set_of_the_user_need_only_messages(tmp_path: Path) -> None:
    """verl's RLHFDataset adds no text of the prompt to `extra_info`."""
    rows = [{"raw_prompt": row["raw_prompt"], "extra_info": {}} for row in ROWS]
    running = trainer(tmp_path / "run", f"trainer.rollout_data_dir={tmp_path / 'drawn'}", rows=rows, held_out=rows)
    running.fit(None)
    lines = [json.loads(line) for line in (tmp_path / "drawn" / "1.jsonl").read_text().splitlines()]
    assert {line["input"] for line in lines} == {"a red circle", "a blue square"}
    shown = json.loads((tmp_path / "run" / "samples" / "step_000002" / "index.json").read_text())
    assert [sample["prompt"] for sample in shown] == ["a red circle", "a blue square"]


def test_an_average_is_evaluated_and_then_the_engines_get_the_policy_again(tmp_path: Path) -> None:
    running = trainer(
        tmp_path, "actor_rollout_ref.actor.ema_decay=0.9", "actor_rollout_ref.rollout.pipeline.output_type=latent"
    )
    calls: list[Any] = []
    running.stack.workers.send_average = calls.append
    publish = running.stack.weights.update_weights

    def publishing(global_steps: int) -> Any:
        calls.append(global_steps)
        return publish(global_steps)

    def note(prompts: DataProto) -> None:
        calls.append("evaluation" if prompts.meta_info.get("validate") else "training")

    running.stack.weights.update_weights = publishing
    running.stack.agent_loop.asked = note
    running.fit(None)
    average = [True, "version", "evaluation", False, "version"]
    wanted = ["version", *average, "training", "version", "training", "version", *average]
    assert ["version" if type(call) is int else call for call in calls] == wanted
    assert [call for call in calls if type(call) is int] == [0, 0, 0, 1, 2, 2, 2]


def test_metrics_of_ranks_are_averaged_but_for_maxima(tmp_path: Path) -> None:
    trainer(
        tmp_path,
        "trainer.val_before_train=false",
        "data.val_files=null",
        "actor_rollout_ref.rollout.pipeline.output_type=latent",
    ).fit(None)
    line = RunFolder(tmp_path).metrics()[-1]
    assert (line["actor/ratio_max"], line["actor/loss"]) == (3.0, 1.5)


def test_a_run_without_any_optimizer_step_ends_in_an_error(tmp_path: Path) -> None:
    skipping = trainer(tmp_path, "actor_rollout_ref.rollout.pipeline.output_type=latent", optimizer_steps=0.0)
    with pytest.raises(FloatingPointError, match="no optimizer step of this run was taken"):
        skipping.fit(None)


BACKGROUND = (
    "trainer.save_freq=1",
    "actor_rollout_ref.actor.checkpoint.async_save=true",
    "actor_rollout_ref.rollout.pipeline.output_type=latent",
)


def test_ranks_get_the_mini_batches_of_one_process(tmp_path: Path) -> None:
    """Two prompts have two samples each, with the advantages -a and a; a mini-batch is a prompt."""
    signs: dict[int, list[float]] = {}
    for ranks in (1, 2):
        mini_batches = (f"trainer.n_gpus_per_node={ranks}", "actor_rollout_ref.actor.ppo_mini_batch_size=1")
        running = trainer(tmp_path / str(ranks), *mini_batches)

        def remember(data: DataProto, ranks: int = ranks) -> None:
            signs[ranks] = data.batch["advantages"].sign().tolist()

        running.stack.workers.asked = remember
        running.fit(None)
    assert signs == {1: [-1, 1, -1, 1], 2: [-1, -1, 1, 1]}


@pytest.mark.parametrize("why", ["stop_wanted", "checkpoint_wanted"])
def test_a_suspended_run_waits_for_its_checkpoint(tmp_path: Path, why: str) -> None:
    running = trainer(tmp_path, *BACKGROUND, "trainer.save_freq=0", "trainer.total_training_steps=3")
    seen: list[list[int]] = []

    def asked() -> bool:
        seen.append(checkpoints.steps(tmp_path / "checkpoints"))
        return len(seen) == 2

    after: list[list[int]] = []
    running.requests.saved = lambda: after.append(checkpoints.steps(tmp_path / "checkpoints"))
    setattr(running.requests, why, asked)
    with contextlib.suppress(Interrupted):
        running.fit(None)
    assert after == ([] if why == "stop_wanted" else [[2]])
    saved = checkpoints.steps(tmp_path / "checkpoints")
    assert (saved, len(seen)) == (([1], 2) if why == "stop_wanted" else ([2, 3], 3))
    assert why == "stop_wanted" or seen[2] == [2], "complete before the next step"


@pytest.mark.parametrize("background", ["false", "true"], ids=["written", "being written"])
def test_a_run_that_stops_after_a_checkpoint_saves_no_other_one(tmp_path: Path, background: str) -> None:
    running = trainer(
        tmp_path,
        "trainer.save_freq=1",
        "trainer.total_training_steps=3",
        "data.val_files=null",
        f"actor_rollout_ref.actor.checkpoint.async_save={background}",
    )
    running.requests.stop_wanted = lambda: running.loop.checkpoints.last_complete_step == 2
    with pytest.raises(Interrupted):
        running.fit(None)
    assert [event["step"] for event in events(tmp_path, "checkpoint")] == [1, 2]
    assert running.stack.workers.started == (2 if background == "true" else 0)


def test_a_run_saves_its_last_step_where_an_earlier_run_has_a_checkpoint_of_that_step(tmp_path: Path) -> None:
    """As a run that starts from an earlier checkpoint in its own folder (`trainer.resume_mode=resume_path`)."""
    folder = tmp_path / "checkpoints"
    trainer(tmp_path, "trainer.save_freq=1").fit(None)
    again = trainer(tmp_path, "trainer.save_freq=0")
    again.stack.workers.load_checkpoint = lambda path: None
    again.stack.workers.save_checkpoint = lambda path: (Path(path) / "others").write_text("w")
    again.fit(folder / "step_000001")
    newest = checkpoints.latest(folder)
    assert newest == folder / "step_000002" and (newest / "others").is_file()
    again.stack.workers.save_checkpoint = lambda path: pytest.fail("it has its checkpoint")
    again.fit(newest)


@pytest.mark.parametrize("settings", [(), BACKGROUND], ids=["at once", "in the background"])
def test_a_run_whose_folder_is_taken_over_saves_no_checkpoint(tmp_path: Path, settings: tuple[str, ...]) -> None:
    running = trainer(tmp_path, *settings, "trainer.save_freq=1", "trainer.total_training_steps=3")
    running.folder.take()
    updates = iter(range(1, 4))
    running.stack.workers.asked = lambda data: RunFolder(tmp_path).take() if next(updates) == 2 else None
    with pytest.raises(TakenOver):
        running.fit(None)
    assert set(checkpoints.steps(tmp_path / "checkpoints")) <= {1}, "of the time before"
    assert [line["step"] for line in running.folder.metrics() if line["step"]] == [1]


def test_a_failing_run_says_that_its_last_checkpoint_is_dropped(tmp_path: Path) -> None:
    running = trainer(tmp_path, *BACKGROUND)
    updates = iter(range(1, 3))

    def fail_in_step_2(data: DataProto) -> None:
        if next(updates) == 2:
            raise FloatingPointError("gradients are not finite")

    running.stack.workers.asked = fail_in_step_2
    with pytest.raises(FloatingPointError, match="not finite"):
        running.fit(None)
    assert checkpoints.steps(tmp_path / "checkpoints") == []
    assert [(event["reason"], event["step"]) for event in events(tmp_path, "warning")] == [("CheckpointDropped", 1)]
