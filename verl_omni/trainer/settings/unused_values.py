"""PURE: values of a recipe that change nothing here, although their settings have an effect; each with the reason."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.algos.sde_settings import SdeSettings
from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.declarations import NETWORK, TRACKERS_WITH_IMAGES, VERL_BACKENDS
from verl_omni.settings_schema.reference_settings import Copied, find_rule
from verl_omni.settings_schema.setting import is_number
from verl_omni.trainer.settings.reference_modules import is_placeholder, replaced
from verl_omni.workers.algorithms.registered import ALGORITHMS

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOG_PROBS = f"{ROLLOUT}.calculate_log_probs"
KL = f"{ACTOR}.use_kl_loss"
OF_KL = (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.diffusion_loss.exact_kl")
MODEL_DTYPE = f"{ACTOR}.fsdp_config.model_dtype"
FUNCTION = "reward.custom_reward_function"
PICTURES = "trainer.log_val_generations"
CONTIGUOUS = f"{ROLLOUT}.algo.sde_contiguous"
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend"
LOAD_FORMAT = f"{ROLLOUT}.load_format"
DRAWS = f"{ACTOR}.diffusion_loss.draws"
# Settings of the noise in the sampler's steps; `val_kwargs.algo` has the same names for evaluations.
NOISE = tuple(
    f"{ROLLOUT}.algo.{name}"
    for name in (
        "sde_type",
        "sde_window_size",
        "sde_window_range",
        "sde_window_seed",
        "sde_contiguous",
        "sample_strategy",
        "iters_per_group",
    )
)
INIT = f"{MODEL}.lora_init_weights"
ADAPTER = tuple(
    f"{MODEL}.{name}" for name in ("lora_alpha", "lora_dtype", "lora_init_weights", "target_modules", "exclude_modules")
)
GUIDANCE = ("guidance_scale", "true_cfg_scale")


def unneeded(loss: str, name: str, value: Any) -> str | None:
    """Why an override that says whether there are log-probabilities, or a KL loss, has no effect; None: it has one.

    An algorithm on recorded steps always has the engine's log-probabilities, and another one never does. A KL loss
    needs recorded steps; the other algorithms have other terms for this. In a review of the reference (verl-omni#106)
    the setting only keeps a reference policy, which direct preference keeps anyway.
    """
    if name == KL and value is True and not ALGORITHMS[loss].on_recorded_steps:
        setting = ALGORITHMS[loss].near_base
        advice = f"; what keeps {loss} near the base is diffusion_loss.{setting}" if setting else ""
        return f"a KL loss is of recorded steps{advice}"
    if name != LOG_PROBS or value is ALGORITHMS[loss].on_recorded_steps:
        return None
    if value is False:  # the loss uses the trainer's, as the reference does with this value
        return "the engine's log-probabilities are compared with the trainer's, which the loss takes"
    return f"{loss} uses no log-probabilities" if value is True else None


def of_training_without_steps(config: DictConfig, name: str) -> bool:
    """Whether a setting is of a sampler's steps in training, and the algorithm trains on none."""
    loss = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
    return name.startswith(f"{MODEL}.pipeline.") and not ALGORITHMS[loss].on_recorded_steps


def find(config: DictConfig, given: Mapping[str, Any]) -> dict[str, str]:
    """The reason for each setting of a run whose value changes nothing.

    Args:
        config: the checked settings; `model.architecture` may be null. given: values by the names of the overrides.
    """
    return dict(_find(config, given))


def _find(config: DictConfig, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # Imports torch, before which modules of users are imported.
    from verl_omni.pipelines.registry import FAMILIES, IMAGE_SHIFT, reads_extra_ids

    settings = config.actor_rollout_ref
    correction = config.algorithm.rollout_correction
    for name in (LOG_PROBS, KL):
        if reason := unneeded(settings.actor.diffusion_loss.loss_mode, name, given.get(name)):
            yield name, reason
    if settings.actor.get("use_kl_loss") is False:
        yield from ((name, f"without {KL}=true the loss has no KL") for name in OF_KL if given.get(name))
    noisy = settings.rollout.algo.noise_level > 0  # a window is checked only then
    if given.get(CONTIGUOUS) is False and noisy and _fills_its_range(settings.rollout):
        yield CONTIGUOUS, "the window has every step of its range"
    if given.get(BACKEND) in VERL_BACKENDS:
        yield BACKEND, f"weights reach standalone replicas over TCP ({NETWORK})"
    if given.get(LOAD_FORMAT) == "dummy":
        yield LOAD_FORMAT, "the engine loads the model's own weights"
    nft = settings.actor.diffusion_loss.loss_mode == "diffusion_nft"
    if nft and DRAWS in given and config.algorithm.timestep_fraction is not None:
        yield DRAWS, "with algorithm.timestep_fraction, samples are trained on the sampler's noise levels"
    if settings.model.lora_rank <= 0 and str(given.get(MODEL_DTYPE)) in ("bfloat16", "bf16"):
        yield MODEL_DTYPE, "trained weights are float32, and mixed_precision.param_dtype sets the computation"
    if correction.bypass_mode and correction.rollout_is is not None:
        name = "algorithm.rollout_correction.rollout_is"
        yield name, "with bypass_mode=true the loss has the ratio to the engine's policy already"
    if given.get(f"{MODEL}.extra_tokenizers") and not reads_extra_ids(settings.model.architecture):
        yield f"{MODEL}.extra_tokenizers", "the model family tokenizes the prompt for each of its text encoders itself"
    if settings.model.architecture in FAMILIES and not FAMILIES[settings.model.architecture].videos:
        for name in (f"{ROLLOUT}.pipeline.video_flow_shift", f"{ROLLOUT}.val_kwargs.pipeline.video_flow_shift"):
            if given.get(name) is not None:
                yield name, IMAGE_SHIFT.format(settings.model.architecture)
    for name in given:
        rule = find_rule(name)
        if isinstance(rule, Copied) and of_training_without_steps(config, name) and rule.name in given:
            yield name, f"training does not run the sampler; {rule.name} applies to the samples"
    yield from _of_engine(settings, given)
    yield from _of_no_noise(settings.rollout, given)
    yield from _unread_guidance(settings, given)
    if settings.model.lora_adapter_path is not None:
        if given.get(INIT):
            yield INIT, f"the adapter has the values of {MODEL}.lora_adapter_path"
    elif settings.model.lora_rank <= 0:
        yield from ((name, f"{MODEL}.lora_rank is 0: all weights are trained") for name in ADAPTER if given.get(name))
    if ALGORITHMS[settings.actor.diffusion_loss.loss_mode].row == "pair" and "algorithm.global_std" in given:
        yield "algorithm.global_std", f"{settings.actor.diffusion_loss.loss_mode} orders samples without advantages"
    if given.get(PICTURES) and config.trainer.log_val_generations > 0 and not _shows_pictures(config.trainer.logger):
        yield PICTURES, f"trainer.logger shows no pictures; {', '.join(TRACKERS_WITH_IMAGES)} do"
    if config.algorithm.sample_source == "offline" and f"{ROLLOUT}.n" in given:
        yield f"{ROLLOUT}.n", "training reads pairs of a data set, and samples nothing"
    if is_placeholder(config.reward.reward_manager.name, given.get(f"{FUNCTION}.path")):
        yield FUNCTION, "reward.reward_functions are the scorers"
    yield from replaced(given)


def _of_engine(settings: DictConfig, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of the engine that do nothing with the others, or that the model's family does not read."""
    from verl_omni.pipelines.registry import FAMILIES, unread_engine_settings

    engine = {name: value for name, value in settings.rollout.engine_kwargs.vllm_omni.items() if value is not None}
    rollout = settings.rollout
    idle = engine_settings.without_effect(
        engine, enforce_eager=rollout.enforce_eager, attention_backend=rollout.rollout_attn_backend
    )
    unread = dict(idle)
    if settings.model.architecture in FAMILIES:  # known when the model's folder has been read
        unread |= unread_engine_settings(settings.model.architecture, engine)
    for name, reason in unread.items():
        if (full := f"{engine_settings.GROUP}.{name}") in given:
            yield full, reason


def _of_no_noise(rollout: DictConfig, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of the noise in the sampler's steps, if no sample has any."""
    levels = rollout.algo.noise_level, rollout.val_kwargs.algo.get("noise_level", 0)
    if all(is_number(level) and level <= 0 for level in levels):
        yield from ((name, "no step has noise (rollout.algo.noise_level is 0)") for name in NOISE if name in given)


def _unread_guidance(settings: DictConfig, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A scale of guidance that the model's family does not read, if it is not the one that samples have."""
    from verl_omni.pipelines.registry import FAMILIES, training_adapter

    rollout = settings.rollout
    architecture = settings.model.architecture
    if architecture not in FAMILIES:
        return  # not known before the model's folder is read
    guidance = training_adapter(architecture).guidance
    evaluated = OmegaConf.merge(rollout.pipeline, rollout.val_kwargs.pipeline)
    for group, pipeline in (("pipeline", rollout.pipeline), ("val_kwargs.pipeline", evaluated)):
        scale = guidance(pipeline)
        read = [name for name in GUIDANCE if guidance(OmegaConf.merge(pipeline, {name: scale + 1})) != scale]
        for name in GUIDANCE:
            value = given.get(f"{ROLLOUT}.{group}.{name}")
            if is_number(value) and value != scale and read and name not in read:
                yield f"{ROLLOUT}.{group}.{name}", f"{architecture} reads {read[0]}, which is {scale:g}"


def _shows_pictures(logger: Any) -> bool:
    named = [logger] if isinstance(logger, str) else logger or []
    return not set(named).isdisjoint(TRACKERS_WITH_IMAGES)


def _fills_its_range(rollout: DictConfig) -> bool:
    """Whether the SDE window has every step that it may lie in."""
    low, high, size = SdeSettings.read(rollout.algo).bounds(rollout.pipeline.num_inference_steps)
    return high - low == size
