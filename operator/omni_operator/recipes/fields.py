"""PURE: the field of the job for each setting of the reference, and the reference's defaults where ours differ."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omni_operator.api.overrides.override_names import BYPASS, CORRECTION, limits_older_samples, parse_value
from omni_operator.api.spec.training import ESTIMATORS, LOSSES, SOURCE
from verl_omni.settings_schema.declarations import SETTINGS as DECLARED
from verl_omni.settings_schema.declarations import SEVERAL_SCORERS
from verl_omni.settings_schema.layout import default_of

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ALGO = f"{ROLLOUT}.algo"
# A recipe names the loss of an algorithm, or the estimator of one that has the loss of FlowGRPO.
ALGORITHM_NAMES = {(ESTIMATORS[name] if loss == "flow_grpo" else loss): name for name, loss in LOSSES.items()}
ALGORITHM_NAMES["dpo"] = "DiffusionDPO"  # the name of its estimator there
LOSS = f"{ACTOR}.diffusion_loss.loss_mode"
ESTIMATOR = "algorithm.adv_estimator"
# Settings that several fields follow from.
LORA = tuple(f"{MODEL}.{name}" for name in ("lora_rank", "lora_alpha", "target_modules", "lora_adapter_path"))
WINDOW = (f"{ALGO}.sde_window_size", f"{ALGO}.sde_window_range", f"{ALGO}.sample_strategy", f"{ALGO}.iters_per_group")
SCORER = "reward.custom_reward_function"
SCORERS = "reward.reward_functions"
ARGUMENTS = f"{SCORER}.reward_kwargs"  # verl's name; the next two are this project's
BUILTIN = "reward.scorer"
SETTINGS = "reward.scorer_kwargs"
POOL = (f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node")
V1 = ("trainer.use_v1", "trainer.v1.trainer_mode", "trainer.v1.separate_async.num_warmup_batches")
TOGETHER = (
    *LORA,
    *WINDOW,
    ESTIMATOR,
    *POOL,
    *V1,
    f"{SCORER}.path",
    f"{SCORER}.name",
    f"{ACTOR}.ppo_mini_batch_size",
    "trainer.device",
    BUILTIN,
)
# Settings that the job sets by itself, with the values that agree with it.
IMPLIED: dict[str, tuple[Any, ...]] = {
    **{name: DECLARED[name].values for name in (f"{ROLLOUT}.name", "reward.reward_model.rollout.name")},
    "reward.reward_manager.name": (default_of("reward.reward_manager.name"), SEVERAL_SCORERS),
    "reward.reward_manager.module.path": (default_of("reward.reward_manager.module.path"),),
}


def named_algorithm(values: Mapping[str, Any]) -> str | None:
    """The algorithm that a script names; None if it does not exist.

    DanceGRPO and MixGRPO have the loss of Flow-GRPO, so that a script may name them as what samples are for only.
    """
    sampled = values.get(f"{MODEL}.algorithm", "flow_grpo")
    loss = values.get(LOSS, sampled)
    return ALGORITHM_NAMES.get(sampled if loss == "flow_grpo" and sampled in ("dance_grpo", "mix_grpo") else loss)


def algorithm_of(values: Mapping[str, Any]) -> str | None:
    """The job's algorithm: the one that the script names, or that its estimator and sampler make of Flow-GRPO."""
    named = named_algorithm(values)
    estimator = values.get(ESTIMATOR)
    sampler = values.get(f"{ALGO}.sde_type")
    if named == "DanceGRPO" and sampler not in (None, "dance_sde"):
        return "FlowGRPO"
    if named == "FlowGRPO" and (estimator, sampler) == ("dance_grpo", "dance_sde"):
        return "DanceGRPO"
    if named == "FlowGRPO" and estimator == "mix_grpo":
        return "MixGRPO"
    return named


def contradicting_names(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """A setting that names another algorithm than one before it, and why that is refused, as by the trainer.

    DanceGRPO and MixGRPO are Flow-GRPO with other settings, which each of three settings may name.
    """
    named = [
        (setting, values[setting])
        for setting in (LOSS, f"{MODEL}.algorithm", ESTIMATOR)
        if values.get(setting) in ("dance_grpo", "mix_grpo")
    ]
    for setting, value in named[1:]:
        if value != named[0][1]:
            return setting, f"contradicts {named[0][0]}={named[0][1]}: these are different algorithms; name one of them"
    return None


def ratio_of_reference(algorithm: str, values: Mapping[str, Any]) -> list[str]:
    """The override for the reference's default where batches are generated ahead: jobs have another one then."""
    corrected = any(name.startswith(CORRECTION) for name in values)
    return [] if corrected or not limits_older_samples(LOSSES.get(algorithm)) else [f"{BYPASS}=false"]


class Refusal(ValueError):
    """A value for which there is no field, and why.

    Attributes:
        setting: name of the setting with this value, if several are read.
    """

    def __init__(self, reason: str, setting: str | None = None) -> None:
        super().__init__(reason)
        self.setting = setting


def number(value: Any) -> Any:
    """A number as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(f"{value} is not a number")
    return value


def interval(value: Any) -> Any:
    """Steps between two events; the reference writes -1 for never, the job 0."""
    return 0 if value is None else max(0, number(value))


def text(value: Any) -> Any:
    """A text as it is."""
    if not isinstance(value, str):
        raise Refusal(f"{value} is not a text")
    return value


def texts(value: Any) -> Any:
    """A list of texts; one text is a list of one."""
    return [] if value is None else [text(item) for item in (value if isinstance(value, list) else [value])]


def one_of(**names: str) -> Callable[[Any], Any]:
    """A name of the reference to the job's."""

    def convert(value: Any) -> str:
        if value not in names:
            raise Refusal(f"{value} is not supported; write {' or '.join(names)}")
        return names[value]

    return convert


# What a recipe's value becomes in the setting's field, by the setting; it raises `Refusal`.
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    f"{MODEL}.path": text,
    "data.train_files": texts,
    "data.val_files": texts,
    "data.max_prompt_length": number,
    "data.seed": number,
    "data.train_batch_size": number,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": number,
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": one_of(
        bfloat16="bfloat16", bf16="bfloat16", float32="float32", fp32="float32"
    ),
    f"{ACTOR}.optim.lr": number,
    "trainer.total_training_steps": number,
    "trainer.test_freq": interval,
    "trainer.n_gpus_per_node": number,
    "trainer.nnodes": number,
    "trainer.save_freq": interval,
    "trainer.max_actor_ckpt_to_keep": interval,
    "trainer.adapter_save_freq": interval,
    "trainer.max_adapters_to_keep": interval,
    "trainer.resume_mode": one_of(auto="Auto", enable="Auto", disable="Never"),
    "trainer.logger": texts,
    "trainer.project_name": text,
    "trainer.log_val_generations": number,
    "reward.early_stopping_patience": number,
    "reward.num_workers": number,
    "reward.max_failed_share": number,
    f"{ROLLOUT}.n": number,
    f"{ROLLOUT}.tensor_model_parallel_size": number,
    f"{ROLLOUT}.dtype": one_of(bfloat16="bfloat16", float32="float32"),
    f"{ROLLOUT}.max_num_seqs": number,
    f"{ROLLOUT}.max_concurrent_requests": number,
    f"{ROLLOUT}.agent.num_workers": number,
    f"{ROLLOUT}.pipeline.height": number,
    f"{ROLLOUT}.pipeline.width": number,
    f"{ROLLOUT}.pipeline.num_inference_steps": number,
    f"{ROLLOUT}.pipeline.guidance_scale": number,
    f"{ROLLOUT}.pipeline.max_sequence_length": number,
    f"{ALGO}.sde_type": text,
    f"{ALGO}.noise_level": number,
}
# Defaults of the reference, as a recipe would write them, where a job or the trainer here has another one and a run
# would learn something else or be saved elsewhere. docs/figures/reference-settings.tsv has all of them.
REFERENCE_DEFAULTS = {
    "data.train_batch_size": "1024",
    "data.max_prompt_length": "512",
    f"{ACTOR}.ppo_mini_batch_size": "256",
    f"{ACTOR}.optim.lr": "1e-06",
    f"{ACTOR}.optim.weight_decay": "0.01",
    f"{ROLLOUT}.n": "1",
    f"{ROLLOUT}.tensor_model_parallel_size": "2",
    f"{ROLLOUT}.pipeline.max_sequence_length": "512",
    f"{ROLLOUT}.val_kwargs.pipeline.num_inference_steps": "50",
    f"{ALGO}.noise_level": "1.0",
    f"{ALGO}.iters_per_group": "1",
    "trainer.n_gpus_per_node": "8",
    "trainer.save_freq": "-1",
    "trainer.test_freq": "-1",
    "trainer.max_actor_ckpt_to_keep": "null",
    "reward.aggregation": "weighted_sum",
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "ocr",
    "trainer.logger": "['console', 'wandb']",
}


def defaults(algorithm: str | None, values: Mapping[str, Any]) -> dict[str, str]:
    """What a recipe gets that does not give these settings.

    Algorithms without recorded steps draw samples without noise, as the trainer does for them. Pairs of a data set are
    no samples, whose number is then the job's.

    Args:
        values: values of the settings that the recipe gives.
    """
    noise = {} if (algorithm or "FlowGRPO") in ESTIMATORS else {f"{ALGO}.noise_level": "0.0"}
    of_trainer = values.get("trainer.n_gpus_per_node", 8)
    of_engines = values.get(POOL[1], of_trainer) if values.get(POOL[0]) else of_trainer
    parallel = {f"{ROLLOUT}.tensor_model_parallel_size": str(default_parallel_size(of_engines))}
    unused = f"{ROLLOUT}.n" if values.get(SOURCE) == "offline" else ""
    return {name: text for name, text in (REFERENCE_DEFAULTS | noise | parallel).items() if name != unused}


def default_parallel_size(accelerators: Any) -> int:
    """The reference's tensor parallel size, 2; 1 on a node with an odd number of accelerators, as 2 would not fit."""
    return 1 if isinstance(accelerators, int) and accelerators % 2 else 2


_INTERPOLATION = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)+)\}")


def value_of(name: str, texts: Mapping[str, str]) -> Any:
    """The value of a setting, with references to other settings resolved, such as `${data.train_batch_size}`.

    A value that begins with an unknown reference stays a text.
    """
    others = {key: text for key, text in texts.items() if key != name}
    text = _INTERPOLATION.sub(lambda at: str(value_of(at[1], others)) if at[1] in others else at[0], texts[name])
    return text if text.startswith("$") else parse_value(text)


# What the shell or Hydra puts another text for: `$(date +%F)`, `` `date` ``, `${NAME}`, `$NAME`.
_EXPANSION = re.compile(r"\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}|\$\w+")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


def job_name(experiment: str, limit: int) -> str:
    """A name that Kubernetes accepts, as near to the experiment's as possible, without what is not known of it."""
    name = _NOT_IN_NAMES.sub("-", _EXPANSION.sub("-", experiment).lower()).strip("-")
    return (name if name[:1].isalpha() else f"run-{name}".rstrip("-"))[:limit].rstrip("-")


# Hydra needs no blank behind the colon of a mapping, and YAML does.
_KEY = re.compile(r"""'(?:\\.|[^'])*'|"(?:\\.|[^"])*"|(?P<key>[{,]\s*[\w./-]+:)(?=\S)""")


def settings_in(name: str, text: str) -> Iterator[tuple[str, str]]:
    """The settings of a group that is given as a whole, `group={setting: value}`; another setting as it is."""
    is_mapping = text.lstrip().startswith("{")
    spaced = _KEY.sub(lambda found: f"{found['key']} " if found["key"] else found[0], text)
    values = parse_value(spaced if is_mapping else text)
    above = any(known.startswith(f"{name}.") for known in (*CONVERSIONS, *TOGETHER, *IMPLIED))
    is_group = above or f"{name}.".startswith((f"{SCORERS}.", f"{SETTINGS}.", f"{ARGUMENTS}."))
    if not (is_group and isinstance(values, dict) and values):
        yield name, text
        return
    for key, value in values.items():
        yield from settings_in(f"{name}.{key}", value if isinstance(value, str) else json.dumps(value))
