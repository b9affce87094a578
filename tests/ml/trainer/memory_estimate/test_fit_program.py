"""`drl fit`: the program, and the changes of settings that it advises."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.ml import smallest_job
from tests.ml.trainer.memory_estimate.small_jobs import ACTOR, PIPELINE, job
from verl_omni.settings_schema.layout import layout
from verl_omni.trainer.memory_estimate import __main__ as program
from verl_omni.trainer.memory_estimate import advice, engine_memory, estimate, job_estimate, trainer_memory

REQUIRED = ("data.train_files=x.jsonl", "trainer.total_training_steps=1")


@pytest.mark.slow
def test_a_job_that_does_not_fit_is_told_what_to_change(tiny: Path) -> None:
    large = [f"actor_rollout_ref.rollout.pipeline.{side}=1024" for side in ("height", "width")]
    document = program.describe(job(tiny, *large), None, accelerator=True)
    assert (document["fits"], document["advice"]) == (None, [])
    known = layout("flow_grpo").names
    capacity = int(0.7 * document["peak"] / (1 - estimate.RESERVE))
    document = program.describe(job(tiny, *large), capacity, accelerator=True)
    assert document["fits"] is False
    assert document["advice"][-1]["fits"] is True
    assert [step["setting"] for step in document["advice"] if step["setting"] not in known] == []
    peaks = [document["peak"], *(step["peak"] for step in document["advice"])]
    assert peaks == sorted(peaks, reverse=True)


MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
BATCH = "actor_rollout_ref.rollout.max_num_seqs"
SPLIT = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def test_advice_stops_when_the_job_fits_and_skips_what_does_not_help() -> None:
    config = smallest_job.load()

    def phases_of(changed: Any) -> dict[str, int]:
        return {"update": 100 if changed.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu is None else 60}

    before = {"update": 100}
    advised = advice.advise(config, before, phases_of, lambda peak: peak < 70)
    assert [(step.change.setting, step.phase, step.peak, step.fits) for step in advised] == [
        (MICRO, "update", 60, True)
    ]
    assert advice.advise(config, before, lambda _: before, lambda _: False) == ()
    assert advice.advise(config, before, phases_of, lambda _: True) == ()


def test_offloading_and_sleep_that_a_job_does_not_need_are_named() -> None:
    offload = [f"{ACTOR}.fsdp_config.{name}" for name in ("optimizer_offload", "param_offload")]
    sleep = "actor_rollout_ref.rollout.free_cache_engine"
    encoders = "actor_rollout_ref.rollout.offload_text_encoders"
    on = [*offload, sleep, "actor_rollout_ref.rollout.enable_sleep_mode", encoders]
    cache = "actor_rollout_ref.rollout.prompt_cache_dir=/cache"
    backend = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.distributed_executor_backend"
    config = smallest_job.load(*(f"{name}=true" for name in on), cache, f"{backend}=mp")

    def phases_of(changed: Any) -> dict[str, int]:
        return {"update": 50 + 10 * sum(not OmegaConf.select(changed, name) for name in (*offload, sleep, encoders))}

    def named(fits: Any, concerns: Any = lambda _: True) -> list[tuple[str, int]]:
        found = advice.not_needed(config, phases_of, fits, concerns)
        assert all(entry.change.value is False for entry in found)
        return [(entry.change.setting, entry.peak) for entry in found]

    assert named(lambda _: True) == [(offload[0], 60), (offload[1], 70), (sleep, 80), (encoders, 90)]
    assert named(lambda peak: peak < 70) == [(offload[0], 60)], "the others are needed then"
    assert named(lambda _: True, advice.of_rollout) == [(sleep, 60), (encoders, 70)]
    on_the_cpu = smallest_job.load(*(f"{name}=true" for name in on), cache, f"{backend}=uni")
    assert advice.not_needed(on_the_cpu, phases_of, lambda _: True) == (), "nothing is offloaded or sleeps there"


@pytest.mark.parametrize("update", [80, 99])
def test_advice_is_for_every_phase_that_does_not_fit(update: int) -> None:
    config = smallest_job.load(f"{MICRO}=8", f"{BATCH}=32")

    def phases_of(changed: Any) -> dict[str, int]:
        micro, batch = (OmegaConf.select(changed, name) for name in (MICRO, BATCH))
        return {"generation": 100 if batch > 16 else 50, "update": update if micro > 1 else 40}

    advised = advice.advise(config, phases_of(config), phases_of, lambda peak: peak <= 60)
    assert [(step.change.setting, step.phase, step.peak, step.fits) for step in advised] == [
        (MICRO, "update", 100, False),
        (BATCH, "generation", 50, True),
    ]


def test_a_change_that_a_later_one_makes_needless_is_no_advice() -> None:
    names = (MICRO, BATCH, "actor_rollout_ref.actor.fsdp_config.optimizer_offload", "actor_rollout_ref.model.lora_rank")
    config = smallest_job.load(f"{MICRO}=8", f"{BATCH}=16")

    estimated: list[str] = []

    def phases_of(changed: Any) -> dict[str, int]:
        estimated.append(OmegaConf.to_yaml(changed))
        micro, batch, offload, rank = (OmegaConf.select(changed, name) for name in names)
        weights = 10 if rank else 50
        return {"generation": weights + 2 * batch - 20 * offload, "update": weights + 10 * micro}

    advised = advice.advise(config, phases_of(config), phases_of, lambda peak: peak <= 45)
    assert [(step.change.setting, step.change.value, step.peak, step.fits) for step in advised] == [
        (MICRO, 1, 82, False),
        ("actor_rollout_ref.model.lora_rank", 32, 42, True),
    ]
    assert len(estimated) == 1 + len(set(estimated[1:])), "each is estimated once; the first is of this test"


@pytest.mark.parametrize(
    ("helps", "advised"),
    [("trainer.n_gpus_per_node", [(2, "1"), (4, "2")]), (f"{PIPELINE}.height", [(256, "")])],
    ids=["more accelerators count on larger engines", "smaller samples do not"],
)
def test_changes_of_the_number_of_engines_stay_together(helps: str, advised: list[tuple[int, str]]) -> None:
    sizes = [f"{PIPELINE}.{side}=512" for side in ("height", "width")]
    config = smallest_job.load(*sizes, "trainer.n_gpus_per_node=2")
    start = OmegaConf.select(config, helps)

    def phases_of(changed: Any) -> dict[str, int]:
        split = OmegaConf.select(changed, SPLIT) > 1
        helped = OmegaConf.select(changed, helps) != start
        return {"generation": 100 - 30 * split - 60 * helped}

    steps = advice.advise(config, phases_of(config), phases_of, lambda peak: peak <= 50)
    assert [(step.change.value, step.change.costs.partition(advice.ENGINES)[2]) for step in steps] == advised


@pytest.mark.slow
def test_what_a_change_does_not_concern_is_measured_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of the advice has the estimate that it has alone, with fewer passes of fake tensors."""
    sides = [f"{PIPELINE}.{side}=512" for side in ("height", "width")]
    float32 = ["actor_rollout_ref.rollout.dtype=float32", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32"]
    config = job(
        tiny, *sides, *float32, f"{BATCH}=8", "trainer.n_gpus_per_node=2", "actor_rollout_ref.model.lora_rank=0"
    )
    run = {"trainer": 0, "engine": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            run[name] += 1
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(trainer_memory, "measure", counted("trainer", trainer_memory.measure))
    monkeypatch.setattr(engine_memory, "_run_passes", counted("engine", engine_memory._run_passes))
    changed = [config, *(advice._with(config, [change]) for change in advice.changes(config))]
    assert len(changed) > 10
    estimator = job_estimate.JobEstimator(accelerator=True)
    together = [estimator.estimate(job) for job in changed]
    once = dict(run)
    alone = [job_estimate.JobEstimator(accelerator=True).estimate(job) for job in changed]
    assert together == alone
    assert {name: run[name] - once[name] for name in run} == dict.fromkeys(run, len(changed)), "each measures both"
    concerns = {
        change.setting.rpartition(".")[2]: (change.setting in job_estimate.NOT_OF_TRAINER)
        for change in advice.changes(config)
    }
    assert once["trainer"] == 1 + list(concerns.values()).count(False)
    assert once["engine"] < len(changed) - 5, "trainer settings and more accelerators measure no engine again"


def test_a_change_that_raises_another_phase_beyond_the_device_is_no_advice() -> None:
    config = smallest_job.load(f"{MICRO}=8")

    def phases_of(changed: Any) -> dict[str, int]:
        lower = OmegaConf.select(changed, MICRO) == 1
        return {"generation": 90 if lower else 50, "update": 60 if lower else 100}

    assert advice.advise(config, phases_of(config), phases_of, lambda peak: peak <= 70) == ()


@pytest.mark.parametrize(
    ("accelerators", "size", "divisible", "replicas"),
    [(8, 1, 24, 4), (8, 2, 24, 2), (8, 1, 0, 4), (8, 2, 38, None), (2, 2, 24, None), (1, 1, 24, None)],
)
def test_engines_on_the_accelerators_of_the_trainer_may_be_split(
    accelerators: int, size: int, divisible: int, replicas: int | None
) -> None:
    config = smallest_job.load(f"trainer.n_gpus_per_node={accelerators}", f"{SPLIT}={size}")
    splits = [change for change in advice.changes(config, divisible) if change.setting == SPLIT]
    assert [(change.value, change.costs.partition("; needs ")[2]) for change in splits] == (
        [] if replicas is None else [(2 * size, f"spec.rollout.replicas: {replicas}")]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["actor_rollout_ref.model.path=some/model", *REQUIRED], "Qwen/Qwen-Image"),
        (
            ["actor_rollout_ref.model.path=s3://bucket/model", *REQUIRED],
            "copy the *.json files of the model to a folder",
        ),
        (["actor_rollout_ref.model.path=Qwen/Qwen-Image"], "data.train_files: must be given"),
        ([f"actor_rollout_ref.model.path={'n' * 300}", *REQUIRED], "File name too long"),
        (["nonsense=1", *REQUIRED], "nonsense: unknown setting"),
    ],
)
def test_invalid_settings_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""
