"""PURE: `trainer.v1`: number of batches generated ahead of the update, and settings that do not work with it."""

from collections.abc import Iterator

from omegaconf import DictConfig

from verl_omni.settings_schema.layout import default_of
from verl_omni.workers.algorithms.registered import ALGORITHMS

V1 = "trainer.v1"
ROLLOUT = "actor_rollout_ref.rollout"
ASYNC = "separate_async"
DROP = "drop"
BYPASS = "algorithm.rollout_correction.bypass_mode"
OF_ASYNC = ("num_warmup_batches", "parameter_sync_step", "sync_compatible")


def find_problems(config: DictConfig) -> Iterator[str]:
    """Messages about unsupported values of `trainer.use_v1` and `trainer.v1`."""
    v1 = config.trainer.v1
    if v1.trainer_mode == ASYNC:
        yield from _asynchronous(config)
    elif v1.trainer_mode == "sync":
        for name in OF_ASYNC:
            if v1.separate_async[name] != default_of(f"{V1}.separate_async.{name}"):
                yield f"{V1}.separate_async.{name}: is not read with {V1}.trainer_mode=sync; remove it"
    ahead = v1.separate_async.num_warmup_batches
    threshold = v1.sampler.max_off_policy_threshold
    if not _is_int(ahead) or ahead < 0:
        yield f"{V1}.separate_async.num_warmup_batches: must be a whole number of batches, from 0: {ahead}"
    elif threshold is not None and (not _is_int(threshold) or threshold < 1):
        yield f"{V1}.sampler.max_off_policy_threshold: must be at least 1, or null: {threshold}"
    elif threshold is not None and ahead >= threshold and v1.sampler.max_off_policy_strategy != DROP:
        yield (
            f"{V1}.sampler.max_off_policy_threshold: samples generated {ahead} batches ahead span {ahead + 1} "
            f"versions, more than {threshold}; raise it, lower {V1}.separate_async.num_warmup_batches, or write "
            f"{V1}.sampler.max_off_policy_strategy={DROP}"
        )


def _asynchronous(config: DictConfig) -> Iterator[str]:
    if not config.trainer.use_v1:
        yield f"{V1}.trainer_mode: is not read with trainer.use_v1=false; write trainer.use_v1=true"
    if config.algorithm.sample_source != "online":
        yield f"{V1}.trainer_mode: nothing is generated with algorithm.sample_source=offline; write sync"
    elif config.actor_rollout_ref.rollout.nnodes == 0:
        yield (
            f"{V1}.trainer_mode: separate_async needs replicas on accelerators of their own; "
            f"write {ROLLOUT}.nnodes=1, or sync"
        )
    step = config.trainer.v1.separate_async.parameter_sync_step
    rows = config.data.train_batch_size
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if step is not None and step * mini != rows:
        yield (
            f"{V1}.separate_async.parameter_sync_step: the weights are sent after each training step, which has "
            f"data.train_batch_size={rows} / actor_rollout_ref.actor.ppo_mini_batch_size={mini} optimizer steps, not "
            f"{step}; remove it, or change one of these"
        )


def batches_ahead(config: DictConfig) -> int:
    """Number of batches that are generated ahead of the step that trains on them.

    With `max_off_policy_strategy=drop`, no more than `max_off_policy_threshold` allows. The schedule says beforehand
    which samples would be too old, so they are generated with newer weights instead of being dropped afterwards.
    """
    v1 = config.trainer.v1
    if v1.trainer_mode != ASYNC or v1.separate_async.sync_compatible:
        return 0
    ahead = int(v1.separate_async.num_warmup_batches)
    threshold = v1.sampler.max_off_policy_threshold
    if v1.sampler.max_off_policy_strategy == DROP and threshold is not None:
        return min(ahead, int(threshold) - 1)
    return ahead


def unlimited_text(config: DictConfig) -> str | None:
    """Advice if no setting limits how far the policy moves from older samples; else None.

    With one optimizer step per training step the ratio to the trainer's policy before the update is 1, so `clip_ratio`
    does nothing. Algorithms whose loss has no such ratio, or that cannot have the engine's, have nothing to set.
    """
    ahead = batches_ahead(config)
    correction = config.algorithm.rollout_correction
    loss = ALGORITHMS[config.actor_rollout_ref.actor.diffusion_loss.loss_mode]
    if not ahead or correction.bypass_mode or correction.rollout_rs is not None or not loss.on_recorded_steps:
        return None
    if any(setting.name == BYPASS for setting in loss.required):
        return None
    versions = "1 version" if ahead == 1 else f"{ahead} versions"
    return (
        f"samples are up to {versions} of the weights old, and nothing limits how far the policy moves from the one "
        f"that generated them, so the reward may fall. Write {BYPASS}=true, and a clip_ratio of about 2.5 times "
        "rollout_corr/mean_abs_diff of the first steps (docs/guides/pools.md)"
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
