"""PURE: values of settings that this trainer does not support, alone (`settings_schema`) or with others."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.algos.sde_settings import SdeSettings
from verl_omni.reward_loop.part_settings import part_problems
from verl_omni.reward_loop.scorer_signature import nearest_name
from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.conflicts import find_conflicts
from verl_omni.settings_schema.declarations import SETTINGS, out_of_range
from verl_omni.settings_schema.setting import is_number, refused_choice
from verl_omni.settings_schema.setting_names import describe_unknown_of_evaluations
from verl_omni.trainer.settings import async_settings, judge_settings, pool_settings, scorer_devices
from verl_omni.workers.algorithms.estimators import ESTIMATORS
from verl_omni.workers.algorithms.registered import ALGORITHMS

STEPS = "trainer.total_training_steps"
EPOCHS = "trainer.total_epochs"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
DATA = "data"
FSDP = "actor_rollout_ref.actor.fsdp_config"
OPTIM = "actor_rollout_ref.actor.optim"
CORRECTION = "algorithm.rollout_correction"
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
OF_TOKENIZERS = ("path", "max_length")
# Arguments of torch.optim.AdamW without settings of their own, and `eps`.
ADAMW = ("eps", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
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


def find_problems(config: DictConfig, installed: frozenset[str]) -> list[str]:
    """Messages about unsupported settings.

    Args:
        installed: packages of `TRACKER_PACKAGES` that can be imported.
    """
    problems = [
        *find_conflicts(config),
        *_limits(config),
        *_numbers(config),
        *_length(config),
        *pool_settings.find_problems(config),
        *judge_settings.find_problems(config),
        *scorer_devices.find_problems(config),
        *async_settings.find_problems(config),
        *engine_settings.conflicts(
            config.actor_rollout_ref.rollout, trains_adapter=config.actor_rollout_ref.model.lora_rank > 0
        ),
        *(line for key, part in config.reward.reward_functions.items() for line in part_problems(key, part)),
        *_optimizer(config.actor_rollout_ref.actor.optim),
    ]
    return [
        *problems,
        *_values(config),
        *_open_groups(config),
        *_evaluations(config),
        *_paths(config),
        *_output(config),
        *_resume(config),
        *_trackers(config.trainer.logger, installed),
    ]


def select(config: DictConfig, name: str) -> Any:
    """The value of a setting as in YAML; None if there is no such setting."""
    value = OmegaConf.select(config, name)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _values(config: DictConfig) -> Iterator[str]:
    for name, setting in SETTINGS.items():
        registered = tuple(ESTIMATORS.registered) if name == "algorithm.adv_estimator" else ()
        value = select(config, name)
        if setting.values and not setting.accepts(value, registered):
            yield f"{name}: {refused_choice(value, (*setting.values, *registered), setting.advice)}"


def _limits(config: DictConfig) -> Iterator[str]:
    """Numbers out of range; of a setting that copies another one, the other is named."""
    for name, setting in SETTINGS.items():
        group, _, key = name.rpartition(".")
        node = OmegaConf.select(config, group)
        if not setting.limits or node is None or key not in node or OmegaConf.is_interpolation(node, key):
            continue
        if text := out_of_range(name, node[key]):
            yield f"{name}: {text}"


def _numbers(config: DictConfig) -> Iterator[str]:
    """Numbers whose range depends on other settings."""
    algorithm = ALGORITHMS[config.actor_rollout_ref.actor.diffusion_loss.loss_mode]
    # A user's estimator of advantages may take one sample.
    own_estimator = config.algorithm.adv_estimator in SETTINGS["algorithm.adv_estimator"].values
    if config.actor_rollout_ref.rollout.n == 1 and algorithm.row == "sample" and own_estimator:
        yield f"{ROLLOUT}.n: must be at least 2: an advantage compares the samples of a prompt, and would be 0"
    if not is_number(config.actor_rollout_ref.rollout.val_kwargs.seed):
        yield f"{ROLLOUT}.val_kwargs.seed: must be a number: every evaluation draws the same noise from it"
    model = config.actor_rollout_ref.model
    if is_number(model.lora_rank) and model.lora_rank > 0 and is_number(model.lora_alpha) and not model.lora_alpha > 0:
        yield f"{MODEL}.lora_alpha: must be positive: {model.lora_alpha}; the adapter is multiplied by it"


def _open_groups(config: DictConfig) -> Iterator[str]:
    """Unknown names in groups whose defaults are empty."""
    rollout = config.actor_rollout_ref.rollout
    for part in ("pipeline", "algo"):
        known = [f"{ROLLOUT}.{part}.{name}" for name in rollout[part]]
        for name in (f"{ROLLOUT}.val_kwargs.{part}.{name}" for name in rollout.val_kwargs[part]):
            if text := describe_unknown_of_evaluations(name, known):
                yield f"{name}: {text}"
    for tokenizer, entry in config.actor_rollout_ref.model.extra_tokenizers.items():
        where = f"{MODEL}.extra_tokenizers.{tokenizer}"
        if not OmegaConf.is_dict(entry):
            yield f"{where}: must be a group of {' and '.join(OF_TOKENIZERS)}, not {entry}"
            continue
        for name in entry:
            if name not in OF_TOKENIZERS:
                yield f"{where}.{name}: unknown setting{nearest_name(name, OF_TOKENIZERS)}"


def _evaluations(config: DictConfig) -> Iterator[str]:
    """Noise of evaluations that the engine would refuse at the first of them, which may be hours after the start."""
    rollout = config.actor_rollout_ref.rollout
    changed = rollout.val_kwargs
    if not config.data.val_files:
        return
    try:
        SdeSettings.read(rollout.algo)
    except ValueError:
        return  # the checks of training samples name it
    steps = OmegaConf.merge(rollout.pipeline, changed.pipeline).num_inference_steps
    try:
        settings = SdeSettings.read(OmegaConf.merge(rollout.algo, changed.algo))
        if settings.noise_level > 0:
            settings.bounds(steps)
    except ValueError as error:
        yield f"{ROLLOUT}.val_kwargs.algo: {error}"


def _optimizer(optim: DictConfig) -> Iterator[str]:
    arguments = optim.override_optimizer_config
    if not (arguments is None or OmegaConf.is_dict(arguments)):
        yield f"{OPTIM}.override_optimizer_config: must be a group of arguments of AdamW, not {arguments}"
        arguments = None
    for name in arguments or ():
        if name not in ADAMW:
            yield f"{OPTIM}.override_optimizer_config.{name}: is not one of {', '.join(ADAMW)}"


def _paths(config: DictConfig) -> Iterator[str]:
    for name in PATHS:
        value = OmegaConf.select(config, name)
        for path in value if OmegaConf.is_list(value) else [value]:
            if isinstance(path, str) and _URL.match(path) and not (name in IN_STORES and path.startswith("s3://")):
                hub_id = ", or write OWNER/NAME" if name == f"{MODEL}.path" and path.startswith("hf://") else ""
                yield f"{name}: {path} is a URL, and the trainer reads files; copy it here and write its path{hub_id}"


def _output(config: DictConfig) -> Iterator[str]:
    url = str(config.trainer.output.url or "")
    if url.startswith("hf://"):
        if not REPOSITORY_URL.match(url):
            yield f"trainer.output.url: {url} is no folder of a repository; write hf://OWNER/NAME/FOLDER"
    elif url and not url.startswith(("s3://", "file:///")):
        yield (
            f"trainer.output.url: {url} is no store; write s3://BUCKET/PREFIX, hf://OWNER/NAME/FOLDER or file:///FOLDER"
        )


def _resume(config: DictConfig) -> Iterator[str]:
    mode = config.trainer.resume_mode
    path = config.trainer.resume_from_path
    if mode == "resume_path" and not path:
        yield "trainer.resume_from_path: must be given with trainer.resume_mode=resume_path: a folder step_NNNNNN"
    if mode != "resume_path" and path:
        yield f"trainer.resume_from_path: is not read with trainer.resume_mode={mode}; write resume_path"


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
