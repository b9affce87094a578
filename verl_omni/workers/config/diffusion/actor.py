"""Typed settings of the trained model: `actor_rollout_ref.actor`."""

from __future__ import annotations

from abc import ABCMeta
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from verl.base_config import BaseConfig

from verl_omni.settings_schema.reference_settings import Rejected, find_rule
from verl_omni.utils.registry import load
from verl_omni.workers.algorithms import registry
from verl_omni.workers.algorithms.other_names import canonical
from verl_omni.workers.algorithms.registered import ALGORITHMS
from verl_omni.workers.config.diffusion import reference_fields
from verl_omni.workers.config.diffusion.dtypes import parse_dtype

STRATEGIES = ("fsdp", "fsdp2")
ACTOR = "actor_rollout_ref.actor"
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
    others = {mode: load(each.implementation).settings for mode, each in ALGORITHMS.items()}
    defaults = {mode: field.default for mode, other in others.items() for field in fields(other) if field.name == name}
    if not defaults:
        raise TypeError(f"{loss_mode} has no setting {name!r}; its settings are {', '.join(sorted(known))}")
    if value not in defaults.values():
        raise TypeError(f"{name} is a setting of {' and '.join(defaults)}, not of {loss_mode}: leave it out")
    return False


@dataclass
class DiffusionLossConfig(BaseConfig, metaclass=_ByLossMode):
    """Settings of a loss. `DiffusionLossConfig(loss_mode=..., ...)` makes the type of that algorithm, a subclass.

    The reference's section has the settings of every loss; other losses' settings are dropped if they are defaults.

    Attributes:
        loss_mode: name of the algorithm.

    Raises:
        TypeError: the algorithm has no setting of a given name.
        ValueError: there is no such algorithm, or a setting is out of range.
    """

    loss_mode: str = field(default="flow_grpo", kw_only=True)


def require_positive(loss: str, **numbers: float) -> None:
    """Refuse settings of a loss that are not positive.

    Raises:
        ValueError: one is not; the message names it.
    """
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"{loss}: {name} must be positive: {number}")


@dataclass
class DiffusionOptimizerConfig(BaseConfig):
    """AdamW and its learning-rate schedule.

    Attributes:
        lr: peak learning rate.
        override_optimizer_config: further arguments of `torch.optim.AdamW`.
        lr_scheduler_type: after the warm-up, constant, or cosine decay.
        lr_warmup_steps: optimizer steps of linear warm-up; none if not positive.
        lr_warmup_steps_ratio: `lr_warmup_steps` over `total_training_steps`; the trainer sets the former by it.
        total_training_steps: optimizer steps at which the cosine ends; constant if not positive.
        min_lr_ratio: lowest factor of the learning rate on the cosine.
        num_cycles: periods of the cosine; 0.5: it falls once.
        clip_grad: another name of `DiffusionActorConfig.grad_clip`.
        optimizer, optimizer_impl, warmup_style, zero_indexed_step: the reference's; only their defaults.

    Raises:
        ValueError: a value is not supported.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-4
    lr_scheduler_type: str = "constant"
    override_optimizer_config: dict[str, Any] | None = None
    lr_warmup_steps: int = 0
    lr_warmup_steps_ratio: float = 0.0
    total_training_steps: int = -1
    min_lr_ratio: float = 0.0
    num_cycles: float = 0.5
    clip_grad: float | None = None
    optimizer: str = "AdamW"
    optimizer_impl: str = "torch.optim"
    warmup_style: str | None = None
    zero_indexed_step: bool = True

    def __post_init__(self) -> None:
        reference_fields.check(self, f"{ACTOR}.optim")


@dataclass
class DiffusionMixedPrecisionConfig(BaseConfig):
    """Precision of the forward and backward pass, by verl's names of dtypes (`fp32`, `bf16`) or torch's.

    Attributes:
        param_dtype: dtype that layers compute in.
        reduce_dtype: dtype in which gradients are reduced over the ranks and accumulated over micro-batches; only
            float32, because sums in bfloat16 stop growing at 256 equal terms.
        buffer_dtype: dtype that floating-point buffers are cast to after loading, except those that the model keeps in
            float32; None: as they are loaded, like the weights.

    Raises:
        ValueError: a dtype is neither float32 nor bfloat16, or `reduce_dtype` is not float32.
    """

    param_dtype: str = "float32"
    reduce_dtype: str = "float32"
    buffer_dtype: str | None = None

    def __post_init__(self) -> None:
        parse_dtype("mixed_precision.param_dtype", self.param_dtype)
        if self.buffer_dtype is not None:
            parse_dtype("mixed_precision.buffer_dtype", self.buffer_dtype)
        if parse_dtype("mixed_precision.reduce_dtype", self.reduce_dtype) != torch.float32:
            raise ValueError(f"mixed_precision.reduce_dtype must be float32: {self.reduce_dtype}")


@dataclass
class DiffusionFSDPConfig(BaseConfig):
    """Sharding, precision and offload of the trained model.

    Attributes:
        model_dtype: dtype of the weights in memory. Frozen weights may be bfloat16; trained weights and the optimizer
            state are always float32. None: frozen weights have the dtype of `mixed_precision.param_dtype`.
        mixed_precision: precision of the forward and backward pass.
        use_no_sync_for_gradient_accumulation: reduce gradients over the ranks once in an optimizer step. False: after
            each micro-batch, which needs no memory for the whole gradient on each rank. A model with two transformers
            always does the latter.
        fsdp_size: ranks that share one copy of the weights, a divisor of all ranks (HSDP); -1, or more than there are:
            all ranks.
        ulysses_sequence_parallel_size: ranks that share the sequence of each sample, a divisor of all ranks (Ulysses);
            they train on the same rows, and data is divided over the groups.
        reshard_after_forward: argument of FSDP2's `fully_shard`, which shards an actor of several processes.
        forward_prefetch: gather the weights of the next layer before the layer at work is computed.
        use_torch_compile: compile each layer with `torch.compile`.
        param_offload: keep the weights in CPU memory except during updates and weight sync.
        optimizer_offload: keep the optimizer state in CPU memory except during updates.
        dtype: another name of `mixed_precision.param_dtype`.
        strategy: the actor's strategy; None: not given.
        forward_only, full_determinism: the reference's; only their defaults.
        offload_policy, seed, use_orig_params, wrap_policy: the reference's; without effect.

    Raises:
        ValueError: a dtype is neither float32 nor bfloat16, `dtype` differs from `mixed_precision.param_dtype`, or a
            value is not supported.
    """

    model_dtype: str | None = None
    mixed_precision: DiffusionMixedPrecisionConfig = field(default_factory=DiffusionMixedPrecisionConfig)
    use_no_sync_for_gradient_accumulation: bool = True
    fsdp_size: int = -1
    ulysses_sequence_parallel_size: int = 1
    reshard_after_forward: bool = True
    forward_prefetch: bool = False
    use_torch_compile: bool = False
    param_offload: bool = False
    optimizer_offload: bool = False
    dtype: str | None = None
    strategy: str | None = None
    forward_only: bool = False
    full_determinism: bool = False
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
class DiffusionCheckpointConfig(BaseConfig):
    """How checkpoints are written.

    Attributes:
        async_save: copy the training state to CPU memory, and write the copy while the training goes on.
        save_contents, load_contents: the reference's; a checkpoint always has all of them.

    Raises:
        ValueError: a part of the checkpoint is to be left out.
    """

    async_save: bool = False
    save_contents: list[str] | None = None
    load_contents: list[str] | None = None

    def __post_init__(self) -> None:
        reference_fields.check(self, f"{ACTOR}.checkpoint")


@dataclass
class DiffusionActorConfig(BaseConfig):
    """Updates of the policy.

    Attributes:
        diffusion_loss: settings of the training algorithm.
        ppo_mini_batch_size: prompts per optimizer step (each with `rollout.n` samples), as in verl.
        ppo_micro_batch_size_per_gpu: samples per forward pass; gradients are accumulated. None: the mini-batch, or a
            part of it that is trained on while others are generated.
        ppo_epochs: passes over each batch.
        shuffle: shuffle the rows of each batch; each rank shuffles its own share of them.
        grad_clip: upper limit of the gradient norm.
        max_skipped_steps: optimizer steps in a row that may be skipped because their gradients are not finite; one more
            ends the run. Not negative.
        use_kl_loss, kl_loss_coef: add this multiple of the KL to the base model; algorithms on recorded steps only.
            With all weights trained, a frozen copy of the base is kept, in the dtype that layers compute in.
        ema_decay: decay, in (0, 1), of an exponential moving average of the trained weights after each optimizer step,
            which evaluations and saved adapters have; None: none.
        seed: seed of the initial adapter and of the shuffling.
        checkpoint: how checkpoints are written.
        strategy: sharding over several processes; `fsdp` and `fsdp2` both mean FSDP2.
        rollout_n: must equal the rollout's `n`; None: not given.
        rollout_correction: copy of `algorithm.rollout_correction`; only values that ask for nothing.
        use_distill_loss, loss_scale_factor, veomni_config: the reference's; only their defaults.
        data_loader_seed, distill_loss_coef, distill_loss_mode, profiler: the reference's; without effect.

    Raises:
        ValueError: `strategy` is unknown, `max_skipped_steps` is negative, `ema_decay` is not in (0, 1), or a value of
            the reference's settings is not supported.
    """

    strategy: str = "fsdp2"
    ppo_mini_batch_size: int = 16
    ppo_micro_batch_size_per_gpu: int | None = None
    ppo_epochs: int = 1
    shuffle: bool = False
    grad_clip: float = 1.0
    max_skipped_steps: int = 3
    ema_decay: float | None = None
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
    use_distill_loss: bool = False
    distill_loss_coef: float = 1.0
    distill_loss_mode: str = "distill_kl"
    loss_scale_factor: float | None = None
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
        if self.max_skipped_steps < 0:
            raise ValueError(f"max_skipped_steps must not be negative: {self.max_skipped_steps}")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"ema_decay must be between 0 and 1, or null: {self.ema_decay}")


_GROUPS: dict[str, type[Any]] = {
    "diffusion_loss": DiffusionLossConfig,
    "optim": DiffusionOptimizerConfig,
    "fsdp_config": DiffusionFSDPConfig,
    "checkpoint": DiffusionCheckpointConfig,
}


FSDPDiffusionActorConfig = DiffusionActorConfig  # the reference has one for each engine; here FSDP is the only one
