"""PURE: values of settings that this trainer supports, and what to write instead of the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.reward_loop.part_settings import part_problems
from verl_omni.reward_loop.scorer_signature import nearest_name
from verl_omni.trainer.settings import async_settings, judge_settings, number_ranges, pool_settings, scorer_devices
from verl_omni.utils import engine_settings
from verl_omni.workers.algorithms.estimators import ESTIMATORS

STEPS = "trainer.total_training_steps"
EPOCHS = "trainer.total_epochs"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
DATA = "data"
FSDP = "actor_rollout_ref.actor.fsdp_config"
OPTIM = "actor_rollout_ref.actor.optim"
CORRECTION = "algorithm.rollout_correction"
FLOAT32 = ("float32", "fp32")
DTYPES = ("float32", "bfloat16", "fp32", "bf16")
RESUME_MODES = ("auto", "disable", "resume_path", "enable")
# verl's trackers (verl.utils.tracking.Tracking), each with the package that it imports.
TRACKER_PACKAGES: dict[str, str | None] = {
    "clearml": "clearml",
    "console": None,
    "file": None,
    "mlflow": "mlflow",
    "rl_insight": "rl_insight",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "vemlp_wandb": "volcengine_ml_platform",
    "wandb": "wandb",
}
# Arguments of torch.optim.AdamW without settings of their own, and `eps`.
ADAMW = ("eps", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
TRACKERS_WITH_PICTURES = ("wandb", "tensorboard", "mlflow")
# Folders and files; a list is checked item by item.
PATHS = (
    f"{DATA}.train_files",
    f"{DATA}.val_files",
    f"{MODEL}.path",
    f"{MODEL}.tokenizer_path",
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "trainer.resume_from_path",
)
IN_STORES = (f"{DATA}.train_files", f"{DATA}.val_files", f"{MODEL}.path")  # may be s3:// URLs
REPOSITORY_URL = re.compile(r"^hf://[^/]+/[^/]+/[^/]+")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class SupportedValues:
    """The values that a setting of the reference may have here.

    Attributes:
        advice: why the others are refused, or what to do instead.
    """

    values: tuple[Any, ...]
    advice: str


SUPPORTED = {
    "algorithm.adv_estimator": SupportedValues(
        ("flow_grpo", "dance_grpo", "mix_grpo"), "advantages are group-relative"
    ),
    "algorithm.sample_source": SupportedValues(
        ("online", "offline"), "the engine generates the samples, or the training data have pairs of images"
    ),
    f"{CORRECTION}.bypass_mode": SupportedValues((False, True), "true takes the engine's log-probabilities as old"),
    f"{CORRECTION}.loss_type": SupportedValues(("ppo_clip",), "the loss is PPO's clipped one"),
    f"{CORRECTION}.rollout_is": SupportedValues(
        (None, "token", "sequence"), "weights are of a recorded step (token), or of a sample (sequence)"
    ),
    f"{CORRECTION}.rollout_is_batch_normalize": SupportedValues((False,), "weights are not divided by their mean"),
    pool_settings.HYBRID: SupportedValues(
        (True, False), f"false is for engines with accelerators of their own ({ROLLOUT}.nnodes > 0)"
    ),
    f"{DATA}.return_raw_chat": SupportedValues((True,), "agent loops take the raw prompt"),
    f"{DATA}.truncation": SupportedValues(
        ("error", "right"),
        f"a prompt longer than {DATA}.max_prompt_length ends the run, or loses its end; drop it "
        f"with {DATA}.filter_overlong_prompts=true",
    ),
    f"{MODEL}.lora": SupportedValues(({},), f"{MODEL}.lora_rank and {MODEL}.lora_alpha set the adapter"),
    f"{MODEL}.lora_dtype": SupportedValues(
        (None, *FLOAT32), f"trained weights are float32; {FSDP}.mixed_precision.param_dtype sets the computation"
    ),
    f"{MODEL}.lora_init_weights": SupportedValues(
        ("gaussian", "orthogonal", True, False),
        "others change the weights that the adapter is added to, which the "
        "engine and users of the adapter do not have, or need data that the trainer does not give them",
    ),
    f"{FSDP}.model_dtype": SupportedValues((None, *DTYPES), "other dtypes need a loss scale"),
    f"{FSDP}.mixed_precision.param_dtype": SupportedValues((None, *DTYPES), "other dtypes need a loss scale"),
    f"{FSDP}.mixed_precision.reduce_dtype": SupportedValues(FLOAT32, "sums of gradients in 16 bits lose terms"),
    f"{FSDP}.mixed_precision.buffer_dtype": SupportedValues((None, *DTYPES), "the model runs in no other dtype"),
    "actor_rollout_ref.actor.strategy": SupportedValues(("fsdp2", "fsdp"), "both mean FSDP2"),
    f"{OPTIM}.lr_scheduler_type": SupportedValues(("constant", "cosine"), "both begin with lr_warmup_steps"),
    f"{ROLLOUT}.dtype": SupportedValues((None, "bfloat16", "float32"), "engine and trainer share these dtypes"),
    f"{ROLLOUT}.name": SupportedValues(("vllm_omni",), "there is one engine"),
    f"{ROLLOUT}.mode": SupportedValues(("async",), "a diffusion rollout is asynchronous"),
    f"{ROLLOUT}.pipeline.output_type": SupportedValues(("image", "pt", "np", "latent"), "image, pt and np are pixels"),
    f"{ROLLOUT}.load_format": SupportedValues(
        ("auto", "safetensors", "dummy"), "the engine loads the model's own weights"
    ),
    f"{ROLLOUT}.disaggregation.enabled": SupportedValues((False,), "a diffusion model has no prefill"),
    f"{ROLLOUT}.prometheus.enable": SupportedValues(
        (False,), "the engine exports no metrics; the operator does, and trainer.logger takes trackers"
    ),
    f"{ROLLOUT}.checkpoint_engine.backend": SupportedValues(
        (None, pool_settings.COLOCATED, pool_settings.NETWORK, *pool_settings.VERL_BACKENDS),
        f"weights reach the engine over IPC, or over TCP with {ROLLOUT}.nnodes > 0",
    ),
    f"{ROLLOUT}.val_kwargs.n": SupportedValues((1,), "an evaluation generates one sample of each prompt"),
    "reward.reward_model.rollout.name": SupportedValues(("vllm",), "vLLM serves the judge"),
    "reward.aggregation": SupportedValues(
        ("weighted_mean", "weighted_sum", "normalized_sum"), "scores are added by their weights"
    ),
    "trainer.v1.trainer_mode": SupportedValues(
        ("sync", async_settings.ASYNC), f"with {ROLLOUT}.nnodes > 0, separate_async overlaps generation and update"
    ),
    "trainer.v1.sampler.max_off_policy_strategy": SupportedValues(
        ("wait", async_settings.DROP),
        "beyond max_off_policy_threshold, wait refuses the run, and drop generates fewer batches ahead",
    ),
    "trainer.resume_mode": SupportedValues(
        RESUME_MODES, "resume_path starts from trainer.resume_from_path, and enable means auto"
    ),
}


def find_problems(config: DictConfig, installed: frozenset[str]) -> list[str]:
    """Messages about unsupported settings.

    Args:
        installed: packages of `TRACKER_PACKAGES` that can be imported.
    """
    trackers = [*_trackers(config.trainer.logger, installed), *_pictures(config.trainer)]
    own = [
        *number_ranges.find_problems(config),
        *_length(config),
        *pool_settings.find_problems(config),
        *judge_settings.find_problems(config),
        *scorer_devices.find_problems(config),
        *async_settings.find_problems(config),
        *engine_settings.conflicts(
            config.actor_rollout_ref.rollout, trains_adapter=config.actor_rollout_ref.model.lora_rank > 0
        ),
        *_rewards(config.reward),
        *_optimizer(config.actor_rollout_ref.actor.optim),
    ]
    return [
        *own,
        *_values(config),
        *_open_groups(config),
        *_paths(config),
        *_output(config),
        *_resume(config),
        *trackers,
    ]


def _values(config: DictConfig) -> Iterator[str]:
    for name, supported in SUPPORTED.items():
        value = OmegaConf.select(config, name)
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        allowed = (*supported.values, *(ESTIMATORS.registered if name == "algorithm.adv_estimator" else ()))
        if not any(plain == other and isinstance(plain, type(other)) for other in allowed):
            values = " or ".join(str(other) for other in allowed)
            yield f"{name}: {plain} is not supported; write {values}: {supported.advice}"


def _open_groups(config: DictConfig) -> Iterator[str]:
    """Unknown names in groups whose defaults are empty."""
    rollout = config.actor_rollout_ref.rollout
    groups = [
        (f"{ROLLOUT}.val_kwargs.{name}", rollout.val_kwargs[name], [key for key in rollout[name] if key[0] != "_"])
        for name in ("pipeline", "algo")
    ]
    for tokenizer, entry in config.actor_rollout_ref.model.extra_tokenizers.items():
        groups.append((f"{MODEL}.extra_tokenizers.{tokenizer}", entry, ["path", "max_length"]))
    for where, given, known in groups:
        if not OmegaConf.is_dict(given):
            yield f"{where}: must be a group of {' and '.join(known)}, not {given}"
            continue
        for name in given:
            if name not in known:
                yield f"{where}.{name}: unknown setting{nearest_name(name, known)}"


def _optimizer(optim: DictConfig) -> Iterator[str]:
    own = optim.override_optimizer_config
    if not (own is None or OmegaConf.is_dict(own)):
        yield f"{OPTIM}.override_optimizer_config: must be a group of arguments of AdamW, not {own}"
        own = None
    for name in own or ():
        if name not in ADAMW:
            yield f"{OPTIM}.override_optimizer_config.{name}: is not one of {', '.join(ADAMW)}"
    for name in ("lr_warmup_steps_ratio", "min_lr_ratio"):
        if not 0 <= optim[name] <= 1:
            yield f"{OPTIM}.{name}: must be from 0 to 1: {optim[name]}"
    if optim.lr_warmup_steps > 0 and optim.lr_warmup_steps_ratio > 0:
        yield f"{OPTIM}.lr_warmup_steps_ratio: is not read with lr_warmup_steps={optim.lr_warmup_steps}; write one"


def _paths(config: DictConfig) -> Iterator[str]:
    for name in PATHS:
        value = OmegaConf.select(config, name)
        for path in value if OmegaConf.is_list(value) else [value]:
            if isinstance(path, str) and _URL.match(path) and not (name in IN_STORES and path.startswith("s3://")):
                hub_id = ", or write OWNER/NAME" if name == f"{MODEL}.path" and path.startswith("hf://") else ""
                yield f"{name}: {path} is a URL, and the trainer reads files; copy it here and write its path{hub_id}"


def _rewards(reward: DictConfig) -> Iterator[str]:
    """Numbers of the reward, and the parts of `reward.reward_functions`."""
    if not isinstance(reward.batch_size, int) or reward.batch_size < 1:
        yield f"reward.batch_size: must be an integer of at least 1, not {reward.batch_size}"
    limits = {"deadline_seconds": reward, "reward_model.deadline_seconds": reward.reward_model}
    for name, group in limits.items():
        seconds = group.deadline_seconds
        if seconds is None or not 0 < seconds < math.inf:
            yield f"reward.{name}: must be a positive number of seconds, not {seconds}"
    for key, part in reward.reward_functions.items():
        yield from part_problems(key, part)


def _output(config: DictConfig) -> Iterator[str]:
    output = config.trainer.output
    url = str(config.trainer.output.url or "")
    if url.startswith("hf://"):
        if not REPOSITORY_URL.match(url):
            yield f"trainer.output.url: {url} is no folder of a repository; write hf://OWNER/NAME/FOLDER"
    elif url and not url.startswith(("s3://", "file:///")):
        yield (
            f"trainer.output.url: {url} is no store; write s3://BUCKET/PREFIX, hf://OWNER/NAME/FOLDER or file:///FOLDER"
        )
    if output.deadline_s <= 0:
        yield f"trainer.output.deadline_s: must be positive: {output.deadline_s}"


def _resume(config: DictConfig) -> Iterator[str]:
    mode = config.trainer.resume_mode
    path = config.trainer.resume_from_path
    if mode == "resume_path" and not path:
        yield "trainer.resume_from_path: must be given with trainer.resume_mode=resume_path: a folder step_NNNNNN"
    if mode != "resume_path" and path:
        yield f"trainer.resume_from_path: is not read with trainer.resume_mode={mode}; write resume_path"


def _pictures(trainer: DictConfig) -> Iterator[str]:
    if not 0 < trainer.video_fps <= 1000:
        yield f"trainer.video_fps: must be positive, and at most 1000: {trainer.video_fps}"
    if trainer.log_val_generations < 0:
        yield f"trainer.log_val_generations: must not be negative: {trainer.log_val_generations}"


def _trackers(loggers: Sequence[str] | str | None, installed: frozenset[str]) -> Iterator[str]:
    for name in loggers or [] if loggers is None or OmegaConf.is_list(loggers) else [loggers]:
        if name not in TRACKER_PACKAGES:
            yield f"trainer.logger: unknown tracker {name}{nearest_name(str(name), TRACKER_PACKAGES)}"
        elif (package := TRACKER_PACKAGES[name]) is not None and package not in installed:
            yield f"trainer.logger: {name} needs the Python package {package}, which is not installed"


def _length(config: DictConfig) -> Iterator[str]:
    """PURE: messages about invalid settings of the run's length."""
    trainer = config.trainer
    if trainer.total_training_steps is None and trainer.total_epochs is None:
        yield f"{STEPS}: must be given, or {EPOCHS}"
    for name, value in ((STEPS, trainer.total_training_steps), (EPOCHS, trainer.total_epochs)):
        if value is not None and value <= 0:
            yield f"{name}: must be positive: {value}"
    if trainer.total_epochs is not None and config.data.filter_overlong_prompts:
        yield (
            f"{EPOCHS}: with data.filter_overlong_prompts=true the number of prompts is known only after the start; "
            f"write {EPOCHS}=null and {STEPS}"
        )
