"""Typed settings of the trained model: `actor_rollout_ref.actor`.

Fields without an explanation here are explained in `trainer/config/diffusion_trainer.yaml`.
"""

from abc import ABCMeta
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from verl.base_config import BaseConfig

from verl_omni.settings_schema import layout
from verl_omni.settings_schema.declarations import SETTINGS
from verl_omni.settings_schema.reference_settings import Rejected, find_rule
from verl_omni.utils.registry import load
from verl_omni.workers.algorithms import registry
from verl_omni.workers.algorithms.other_names import canonical
from verl_omni.workers.algorithms.registered import ALGORITHMS
from verl_omni.workers.config.diffusion import reference_fields
from verl_omni.workers.config.diffusion.dtypes import parse_dtype
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE, fill_defaults, with_defaults

ACTOR = "actor_rollout_ref.actor"
STRATEGIES = SETTINGS[f"{ACTOR}.strategy"].values
LOSS = f"{ACTOR}.diffusion_loss"


class _ByLossMode(ABCMeta):
    """Makes an object of the subclass that `loss_mode` names."""

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        if BaseConfig not in cls.__bases__:
            return super().__call__(*args, **settings)
        loss_mode = canonical(settings.pop("loss_mode", registry.DEFAULT))
        registry.check_name(loss_mode)
        kind = load(ALGORITHMS[loss_mode].implementation).settings
        return kind(*args, **{name: value for name, value in settings.items() if _is_of(kind, loss_mode, name, value)})


def _is_of(kind: type, loss_mode: str, name: str, value: Any) -> bool:
    """Whether a loss has a setting. Settings of other losses are dropped if they have their defaults.

    Raises:
        TypeError: no loss has it, or only another one, and the value is not its default.
        ValueError: the reference has it, and this project does not support the value.
    """
    if name in (known := {field.name for field in fields(kind)}):
        return True
    rule = find_rule(f"{LOSS}.{name}")
    if isinstance(rule, Rejected):
        if not rule.accepts(value):
            raise ValueError(f"{LOSS}.{name}: {value} is not supported: {rule.advice}")
        return False
    others = {mode: load(entry.implementation).settings for mode, entry in ALGORITHMS.items()}
    defaults = {
        mode: field.default for mode, settings in others.items() for field in fields(settings) if field.name == name
    }
    if not defaults:
        raise TypeError(f"{loss_mode} has no setting {name!r}; its settings are {', '.join(sorted(known))}")
    if value not in defaults.values():
        raise TypeError(f"{name} is a setting of {' and '.join(defaults)}, not of {loss_mode}: leave it out")
    return False


@dataclass
class DiffusionLossConfig(BaseConfig, metaclass=_ByLossMode):
    """Settings of a loss. `DiffusionLossConfig(loss_mode=..., ...)` makes the type of that algorithm, a subclass.

    The reference's section has the settings of every loss; other losses' settings are dropped if they are defaults.

    The settings and their defaults are explained in `trainer/config/loss`, and their ranges in `algorithms/registered`.

    Attributes:
        loss_mode: name of the algorithm.

    Raises:
        TypeError: the algorithm has no setting of a given name.
        ValueError: there is no such algorithm, or a setting is out of range.
    """

    loss_mode: str = field(default=registry.DEFAULT, kw_only=True)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Fields that are `FROM_FILE` get the defaults of the algorithm's file."""
        super().__init_subclass__(**arguments)
        if cls.loss_mode in layout.algorithms():
            fill_defaults(cls, layout.loss_defaults(cls.loss_mode))

    def __post_init__(self) -> None:
        if (algorithm := ALGORITHMS.get(self.loss_mode)) is None:
            return
        for problem in algorithm.out_of_range(self):
            raise ValueError(f"{self.loss_mode}: {problem}")


@dataclass
@with_defaults("actor_rollout_ref.actor.optim")
class DiffusionOptimizerConfig(BaseConfig):
    """AdamW and its learning-rate schedule.

    Attributes:
        lr: peak learning rate.
        lr_scheduler_type: after the warm-up, constant, or cosine decay.
        lr_warmup_steps: optimizer steps of linear warm-up; none if not positive.
        clip_grad: another name of `DiffusionActorConfig.grad_clip`.
        optimizer, optimizer_impl, warmup_style, zero_indexed_step: the reference's; only their defaults.

    Raises:
        ValueError: a value is not supported.
    """

    lr: float = FROM_FILE
    betas: tuple[float, float] = FROM_FILE
    eps: float = FROM_FILE
    weight_decay: float = FROM_FILE
    lr_scheduler_type: str = FROM_FILE
    override_optimizer_config: dict[str, Any] | None = FROM_FILE
    lr_warmup_steps: int = 0
    lr_warmup_steps_ratio: float = FROM_FILE
    total_training_steps: int = FROM_FILE
    min_lr_ratio: float = FROM_FILE
    num_cycles: float = FROM_FILE
    clip_grad: float | None = None
    optimizer: str = FROM_FILE
    optimizer_impl: str = FROM_FILE
    warmup_style: str | None = FROM_FILE
    zero_indexed_step: bool = FROM_FILE

    def __post_init__(self) -> None:
        reference_fields.check(self, f"{ACTOR}.optim")


@dataclass
@with_defaults("actor_rollout_ref.actor.fsdp_config.mixed_precision")
class DiffusionMixedPrecisionConfig(BaseConfig):
    """Precision of the forward and backward pass, by verl's names of dtypes (`fp32`, `bf16`) or torch's.

    Attributes:
        param_dtype: dtype that layers compute in.

    Raises:
        ValueError: a dtype is neither float32 nor bfloat16, or `reduce_dtype` is not float32.
    """

    param_dtype: str = "float32"
    reduce_dtype: str = FROM_FILE
    buffer_dtype: str | None = FROM_FILE

    def __post_init__(self) -> None:
        parse_dtype("mixed_precision.param_dtype", self.param_dtype)
        if self.buffer_dtype is not None:
            parse_dtype("mixed_precision.buffer_dtype", self.buffer_dtype)
        if parse_dtype("mixed_precision.reduce_dtype", self.reduce_dtype) != torch.float32:
            raise ValueError(f"mixed_precision.reduce_dtype must be float32: {self.reduce_dtype}")


@dataclass
@with_defaults("actor_rollout_ref.actor.fsdp_config")
class DiffusionFSDPConfig(BaseConfig):
    """Sharding, precision and offload of the trained model.

    Attributes:
        mixed_precision: precision of the forward and backward pass.
        reshard_after_forward: argument of FSDP2's `fully_shard`, which shards an actor of several processes.
        dtype: another name of `mixed_precision.param_dtype`.
        strategy: the actor's strategy; None: not given.
        forward_only, full_determinism: the reference's; only their defaults.
        offload_policy, seed, use_orig_params, wrap_policy: the reference's; without effect.

    Raises:
        ValueError: a dtype is neither float32 nor bfloat16, `dtype` differs from `mixed_precision.param_dtype`, or a
            value is not supported.
    """

    model_dtype: str | None = FROM_FILE
    mixed_precision: DiffusionMixedPrecisionConfig = field(default_factory=DiffusionMixedPrecisionConfig)
    use_no_sync_for_gradient_accumulation: bool = FROM_FILE
    fsdp_size: int = FROM_FILE
    ulysses_sequence_parallel_size: int = FROM_FILE
    reshard_after_forward: bool = FROM_FILE
    forward_prefetch: bool = FROM_FILE
    use_torch_compile: bool = FROM_FILE
    param_offload: bool = FROM_FILE
    optimizer_offload: bool = FROM_FILE
    dtype: str | None = None
    strategy: str | None = None
    forward_only: bool = FROM_FILE
    full_determinism: bool = FROM_FILE
    offload_policy: bool = False
    seed: int = 42
    use_orig_params: bool = False
    wrap_policy: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        precision = reference_fields.typed(self.mixed_precision, DiffusionMixedPrecisionConfig)
        if self.dtype is not None:
            dtype = reference_fields.one_of_two(
                "fsdp_config.mixed_precision.param_dtype",
                "fsdp_config.dtype",
                parse_dtype("mixed_precision.param_dtype", precision.param_dtype),
                parse_dtype("fsdp_config.dtype", self.dtype),
                torch.float32,
            )
            precision = replace(precision, param_dtype=str(dtype).removeprefix("torch."))
        object.__setattr__(self, "mixed_precision", precision)
        if self.model_dtype is not None:
            parse_dtype("fsdp_config.model_dtype", self.model_dtype)
        if self.strategy not in (None, *STRATEGIES):
            raise ValueError(f"Unknown fsdp_config.strategy: {self.strategy!r}; one of {STRATEGIES}: both mean FSDP2")
        reference_fields.check(self, f"{ACTOR}.fsdp_config")


@dataclass
@with_defaults("actor_rollout_ref.actor.checkpoint")
class DiffusionCheckpointConfig(BaseConfig):
    """How checkpoints are written.

    Attributes:
        save_contents, load_contents: the reference's; a checkpoint always has all of them.

    Raises:
        ValueError: a part of the checkpoint is to be left out.
    """

    async_save: bool = FROM_FILE
    save_contents: list[str] | None = None
    load_contents: list[str] | None = None

    def __post_init__(self) -> None:
        reference_fields.check(self, f"{ACTOR}.checkpoint")


@dataclass
@with_defaults("actor_rollout_ref.actor")
class DiffusionActorConfig(BaseConfig):
    """Updates of the policy.

    Attributes:
        diffusion_loss: settings of the training algorithm.
        ppo_mini_batch_size: prompts per optimizer step (each with `rollout.n` samples), as in verl.
        ppo_epochs: passes over each batch.
        shuffle: shuffle the rows of each batch; each rank shuffles its own share of them.
        grad_clip: upper limit of the gradient norm.
        use_kl_loss, kl_loss_coef: add this multiple of the KL to the base model; algorithms on recorded steps only.
            With all weights trained, a frozen copy of the base is kept, in the dtype that layers compute in.
        seed: seed of the initial adapter and of the shuffling.
        checkpoint: how checkpoints are written.
        strategy: sharding over several processes; `fsdp` and `fsdp2` both mean FSDP2.
        rollout_n: must equal the rollout's `n`; None: not given.
        rollout_correction: copy of `algorithm.rollout_correction`; only values that ask for nothing.
        use_distill_loss, loss_scale_factor, veomni_config: the reference's; only their defaults.
        data_loader_seed, distill_loss_coef, distill_loss_mode, profiler: the reference's; without effect.

    Raises:
        ValueError: `strategy` is unknown, a number is out of range, or a value of the reference's settings is not
            supported.
    """

    strategy: str = FROM_FILE
    ppo_mini_batch_size: int = 16
    ppo_micro_batch_size_per_gpu: int | None = FROM_FILE
    ppo_epochs: int = FROM_FILE
    shuffle: bool = FROM_FILE
    grad_clip: float = FROM_FILE
    max_skipped_steps: int = FROM_FILE
    ema_decay: float | None = FROM_FILE
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    seed: int = 0
    # A DiffusionLossConfig, and not typed as one: verl's `omega_conf_to_dataclass` would refuse a subclass's settings.
    diffusion_loss: Any = field(kw_only=True)
    optim: DiffusionOptimizerConfig = field(default_factory=DiffusionOptimizerConfig)
    fsdp_config: DiffusionFSDPConfig = field(default_factory=DiffusionFSDPConfig)
    checkpoint: DiffusionCheckpointConfig = field(default_factory=DiffusionCheckpointConfig)
    rollout_n: int | None = None
    rollout_correction: dict[str, Any] | None = None
    data_loader_seed: int = 42
    use_distill_loss: bool = FROM_FILE
    distill_loss_coef: float = 1.0
    distill_loss_mode: str = "distill_kl"
    loss_scale_factor: float | None = FROM_FILE
    profiler: Any = None
    veomni_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, kind in _GROUPS.items():
            object.__setattr__(self, name, reference_fields.typed(getattr(self, name), kind))
        clip = reference_fields.one_of_two(
            "actor.grad_clip", "actor.optim.clip_grad", self.grad_clip, self.optim.clip_grad, 1.0
        )
        object.__setattr__(self, "grad_clip", clip)
        reference_fields.check(self, ACTOR)
        if self.strategy not in STRATEGIES:
            raise ValueError(f"Unknown strategy: {self.strategy!r}; one of {STRATEGIES}, which both mean FSDP2")


_GROUPS: dict[str, type[Any]] = {
    "diffusion_loss": DiffusionLossConfig,
    "optim": DiffusionOptimizerConfig,
    "fsdp_config": DiffusionFSDPConfig,
    "checkpoint": DiffusionCheckpointConfig,
}


FSDPDiffusionActorConfig = DiffusionActorConfig  # the reference has one for each engine; here FSDP is the only one
