"""Values that a setting cannot have are refused with what to write, whatever would have read them first."""

import pytest
from omegaconf import OmegaConf

from tests.ml.smallest_job import load, refusal
from verl_omni.settings_schema.declarations import may_be_null
from verl_omni.settings_schema.layout import layout
from verl_omni.settings_schema.setting import Kind
from verl_omni.workers.algorithms.registry import DEFAULT

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
OPTIM = f"{ACTOR}.optim"
TOKENIZERS = f"{MODEL}.extra_tokenizers"
FILES = "a path, or a list of paths such as [first.jsonl,second.jsonl]"
WHOLE = "a whole number, such as 8"
EVALUATED = f"{ROLLOUT}.val_kwargs"
EMPTY = "has no value, such as from an empty variable of a script"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        # types
        ("trainer.n_gpus_per_node=", f"{EMPTY}; write {WHOLE}"),
        (f"{MODEL}.path=", f"{EMPTY}; write a path"),
        ("trainer.total_training_steps=many", f"the text 'many' is not supported; write {WHOLE}"),
        ("trainer.total_training_steps=1e3", f"1000.0 is not supported; write {WHOLE}"),
        (f"{ROLLOUT}.n=2.5", f"2.5 is not supported; write {WHOLE}"),
        (f"{MODEL}.enable_gradient_checkpointing=Fales", "the text 'Fales' is not supported; write true or false"),
        (f"{EVALUATED}.pipeline.num_inference_steps=all", f"the text 'all' is not supported; write {WHOLE}"),
        (f"{EVALUATED}.algo.sde_type=ode", "ode is not supported; write null or sde or cps or dance_sde"),
        (f"{EVALUATED}.pipeline.output_type=jpeg", "jpeg is not supported; write null or image or pt or np or latent"),
        (f"{ROLLOUT}.algo.sde_window_range=5", "5 is not supported; write two numbers, such as [0,5]"),
        ("data.train_files=5", f"5 is not supported; write {FILES}"),
        ("data.train_files=[null]", f"[null] is not supported; write {FILES}"),
        ("reward.deadline_seconds=null", "null is not supported; write a number"),
        # groups
        ("trainer=null", "must be a group of settings, not null"),
        ("reward.reward_manager.module=null", "must be a group of settings, not null"),
        ("reward.custom_reward_function=mine.py", "must be a group of settings, not mine.py"),
        ("reward.reward_functions=5", "must be a group of settings, not 5"),
        (f"{OPTIM}.override_optimizer_config=5", "must be a group of arguments of AdamW, not 5"),
        (f"{OPTIM}.override_optimizer_config={{lr: 1}}", ".lr: is not one of eps, amsgrad"),
        (f"{TOKENIZERS}={{clip: null}}", ".clip: must be a group of path and max_length, not None"),
        (f"{TOKENIZERS}.t5={{pat: x}}", ".pat: unknown setting; did you mean path?"),
        ("trainer.logger=5", "unknown tracker 5"),
        (f"{ROLLOUT}.algo={{noise_level: much}}", ".noise_level: the text 'much' is not supported; write a number"),
        (
            f"{EVALUATED}.pipeline.num_inference_step=4",
            f"unknown setting; did you mean {EVALUATED}.pipeline.num_inference_steps?",
        ),
        (f"{EVALUATED}.algo.noise=0", f"unknown setting; did you mean {EVALUATED}.algo.noise_level?"),
        (f"{EVALUATED}.algo.init_same_noise=true", "unknown setting: it is of training samples only"),
        (f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs=4", "unknown setting"),
        # ranges
        ("data.train_batch_size=0", "must be positive"),
        ("trainer.nnodes=0", "must be positive: 0"),
        ("trainer.n_gpus_per_node=0", "must be positive: 0"),
        ("ray_kwargs.ray_init.num_cpus=0", "must be positive: 0"),
        (f"{ROLLOUT}.gpu_memory_utilization=90", "must be above 0 and at most 1: 90"),
        (f"{ACTOR}.grad_clip=-1", "must be positive: -1; for gradients that are not clipped, write inf"),
        (f"{OPTIM}.lr=nan", "must not be negative: nan"),
        (f"{OPTIM}.lr_warmup_steps_ratio=1.5", "must be from 0 to 1: 1.5"),
        ("reward.max_failed_share=1.5", "must be from 0 to 1: 1.5"),
        (f"{ROLLOUT}.pipeline.video_flow_shift=0", "must be positive: 0"),
        (f"{EVALUATED}.pipeline.video_flow_shift=0", "must be positive: 0"),
        (f"{ROLLOUT}.engine_kwargs.vllm_omni.flow_shift=0", "must be positive: 0"),
        (f"{ROLLOUT}.pipeline.guidance_scale=nan", "must not be negative: nan"),
        (f"{EVALUATED}.seed=null", "must be a number: every evaluation"),
        ("reward.batch_size=0", "must be an integer of at least 1: 0"),
        ("reward.deadline_seconds=0", "must be a positive number of seconds: 0"),
        ("reward.reward_model.deadline_seconds=nan", "must be a positive number"),
        ("reward.reward_functions={jpeg: null}", ".jpeg: must be a group of settings, such as"),
        ("reward.reward_functions.jpeg.weight=x", "must be a finite number, not"),
        # URLs
        ("data.train_files=gs://bucket/train.jsonl", "gs://bucket/train.jsonl is a URL, and the trainer reads files"),
        ("data.val_files=[a.jsonl,hf://datasets/x]", "hf://datasets/x is a URL, and the trainer reads files"),
        (f"{MODEL}.path=hf://stabilityai/sd3", "hf://stabilityai/sd3 is a URL, and the trainer reads files"),
        ("trainer.default_local_dir=gs://bucket/runs", "gs://bucket/runs is a URL, and the trainer reads files"),
        (
            "trainer.output.url=gs://b/a",
            "gs://b/a is no store; write s3://BUCKET/PREFIX, hf://OWNER/NAME/FOLDER or file",
        ),
        ("trainer.output.url=hf://owner/name", "hf://owner/name is no folder of a repository; write hf://OWNER/NAME/F"),
        # others that are needed, or are not installed
        ("trainer.resume_mode=resume_path", "trainer.resume_from_path: must be given"),
        ("trainer.resume_from_path=x/step_000001", "is not read with trainer.resume_mode=auto; write resume_path"),
        ("trainer.logger=[tensorbord]", "unknown tracker tensorbord; did you mean tensorboard?"),
        ("trainer.logger=[console,mlflow]", "mlflow needs the Python package mlflow, which is not installed"),
    ],
)
def test_a_value_is_refused_with_what_to_write(override: str, problem: str) -> None:
    """The message begins with the setting; one in a group that is given as a whole by a dot and its own name."""
    name = override.partition("=")[0]
    if not problem.startswith("trainer."):
        problem = f"{name}{problem}" if problem.startswith(".") else f"{name}: {problem}"
    message = refusal(override)
    assert message.startswith(problem) and "\n" not in message


@pytest.mark.parametrize(
    "name",
    ["reward.scorer_kwargs", "reward.reward_functions", f"{EVALUATED}.pipeline", TOKENIZERS],
)
def test_a_group_that_is_empty_by_default_may_be_null(name: str) -> None:
    config = load(f"{name}=null")
    assert OmegaConf.select(config, name) == {} and config == load()


@pytest.mark.parametrize(
    ("algo", "reason"),
    [
        (["sde_window_range=[0,9]"], "an SDE window of 9 steps does not fit into [0, 9) of 4 steps"),
        (["sample_strategy=progressive", "sde_contiguous=false"], "a progressive window is contiguous: write"),
    ],
)
def test_noise_that_the_first_evaluation_would_refuse_is_refused_at_the_start(algo: list[str], reason: str) -> None:
    noisy = [f"{EVALUATED}.pipeline.num_inference_steps=4", f"{EVALUATED}.algo.noise_level=0.5"]
    changed = [f"{EVALUATED}.algo.{setting}" for setting in algo]
    assert refusal("data.val_files=v", *noisy, *changed).startswith(f"{EVALUATED}.algo: {reason}")
    load(*noisy, *changed)  # without held-out prompts


def test_a_setting_of_evaluations_that_is_null_is_as_in_training() -> None:
    assert load(f"{EVALUATED}.pipeline.height=null", "data.val_files=v") == load("data.val_files=v")


@pytest.mark.parametrize("value", ["", "text", None])
def test_no_number_or_switch_stops_with_another_error(value: str | None) -> None:
    """Every setting whose values are checked; those that may be null load."""
    known = layout(DEFAULT)
    assert len(known.kinds) > 120
    for name, kind in known.kinds.items():
        if value is None and may_be_null(name):
            continue
        if (kind in (Kind.PATH, Kind.PATHS) and value == "text") or (name == "data.val_files" and value != "text"):
            continue
        problem = known.wrong_type(name, value)
        assert problem is not None and "; write " in problem


@pytest.mark.parametrize(
    "override",
    [
        "trainer.val_before_train=0",
        "trainer.total_epochs=15.0",
        "trainer.video_fps=23.976",
        f"{EVALUATED}.pipeline.output_type=both",
        f"{EVALUATED}.pipeline={{height: 64}}",
        "data.seed=null",
        f"{ROLLOUT}.seed=${{data.seed}}",
        f"{ROLLOUT}.algo.sde_window_size=null",
        f"{ROLLOUT}.algo.sde_window_range=null",
        f"{ACTOR}.optim.lr=1.e-4",
        f"{ACTOR}.optim.lr=${{actor_rollout_ref.actor.optim.eps}}",
        f"{ACTOR}.optim.lr=1",
        "data.val_max_samples=-1",
        "trainer.experiment_name=2024",
        "trainer.max_actor_ckpt_to_keep=null",
        "data.train_files=[a.jsonl,b.parquet]",
        "data.val_files=v.jsonl",
        "data.val_files=[]",
        "data.val_files=",
    ],
)
def test_usual_values_are_accepted(override: str) -> None:
    load(override)
