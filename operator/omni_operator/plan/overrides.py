"""PURE: trainer settings of a job, as Hydra overrides; the operator and `drl run` use the same."""

import posixpath
from collections.abc import Sequence
from typing import Any, cast

from pydantic.alias_generators import to_snake

from omni_operator.api import DiffusionRLJob, Spec
from omni_operator.api.overrides.override_names import BYPASS, CORRECTION, limits_older_samples
from omni_operator.api.spec.model import NEW_RANK
from omni_operator.api.spec.reward import Scorer
from omni_operator.api.spec.rollout import Rollout
from omni_operator.api.spec.training import ENTRYPOINT, ESTIMATORS, LOSSES
from verl_omni.reward_loop.setting_types import EVALUATION
from verl_omni.settings_schema.declarations import ALL_LINEAR, FIELDS, NEW_ALPHA, SETTINGS, SEVERAL_SCORERS

from .hydra import Value, format_assignment
from .pods.accelerators import ray_resource_of
from .pods.storage import HUB_ENDPOINT, prompt_cache_path, trainer_variables
from .pools import REWARD_RESOURCE, ROLLOUT_RESOURCE, TRAINER_RESOURCE, scorer_resource
from .run_layout import RunLayout

Settings = dict[str, Value]
PYTHONS = ("python", "python3")
ROLLOUT = "actor_rollout_ref.rollout"
ROLLOUT_NODES = f"{ROLLOUT}.nnodes"
JUDGE = "reward.reward_model"
ACTOR = "actor_rollout_ref.actor"
CORRECTIONS = (CORRECTION, f"{ACTOR}.rollout_correction")  # the reference has both names
# Settings with the value of their field.
ENGINE_AND_PIPELINE = (
    "tensor_model_parallel_size",
    "max_num_seqs",
    *(
        f"pipeline.{name}"
        for name in ("height", "width", "num_inference_steps", "guidance_scale", "max_sequence_length")
    ),
)
STEPS = (
    "total_training_steps",
    "save_freq",
    "test_freq",
    "max_actor_ckpt_to_keep",
    "adapter_save_freq",
    "max_adapters_to_keep",
)
SYNC_COMPATIBLE = "trainer.v1.separate_async.sync_compatible"


def render_overrides(job: DiffusionRLJob, layout: RunLayout) -> list[str]:
    """All overrides in order: first from the spec's fields, then the user's, which cannot contradict them."""
    settings = render_settings(job, layout)
    return [*(format_assignment(name, value) for name, value in settings.items()), *job.spec.algorithm.overrides]


def render_command(job: DiffusionRLJob, layout: RunLayout, python: str = "python3") -> list[str]:
    """The trainer's command line.

    Args:
        python: interpreter for an entry point that begins with `python` or `python3`.
    """
    first, *arguments = job.spec.algorithm.entrypoint or ENTRYPOINT
    return [python if first in PYTHONS else first, *arguments, *render_overrides(job, layout)]


def render_settings(job: DiffusionRLJob, layout: RunLayout) -> Settings:
    """Settings that the job's fields set; a field without a value keeps the trainer's default."""
    spec = job.spec
    return {
        **_model(spec),
        **_data(spec),
        **_rollout(spec),
        **_prompt_cache(spec.rollout, layout),
        **_pools(spec.rollout, layout),
        **_older_samples(spec, layout),
        **_judge(spec, layout),
        **_actor(spec),
        **_reward(spec, layout),
        **_trainer(job, layout),
    }


def _model(spec: Spec) -> Settings:
    lora = spec.model.lora
    adapter: Settings = {"actor_rollout_ref.model.lora_rank": 0}
    if lora.enabled:
        modules: Value = ALL_LINEAR if lora.target_modules == (ALL_LINEAR,) else lora.target_modules or None
        new = lora.start_from is None
        adapter = {
            "actor_rollout_ref.model.lora_rank": lora.rank or (NEW_RANK if new else 0),
            "actor_rollout_ref.model.lora_alpha": lora.alpha or (NEW_ALPHA if new else None),
            "actor_rollout_ref.model.target_modules": modules,
        }
    if lora.start_from is not None:
        adapter["actor_rollout_ref.model.lora_adapter_path"] = lora.start_from
    settings: Settings = {"actor_rollout_ref.model.path": spec.model.base, **adapter}
    if estimator := ESTIMATORS.get(spec.algorithm.name):
        settings["algorithm.adv_estimator"] = estimator
    if loss := LOSSES.get(spec.algorithm.name):
        settings |= {f"{ACTOR}.diffusion_loss.loss_mode": loss, "actor_rollout_ref.model.algorithm": loss}
    return settings


def _copied(spec: Spec, *names: str) -> Settings:
    """Settings with the value of their field; one whose field is absent is left out."""
    settings: Settings = {}
    for name in names:
        value: Any = spec
        for part in FIELDS[name].split(".")[1:]:
            value = getattr(value, to_snake(part))
        if value is not None:
            settings[name] = value
    return settings


def _data(spec: Spec) -> Settings:
    return {
        "data.train_files": spec.data.train,
        "data.val_files": spec.data.validation or None,
        **_copied(spec, "data.train_batch_size", "data.max_prompt_length", "data.seed"),
    }


def _rollout(spec: Spec) -> Settings:
    rollout = spec.rollout
    sampler = spec.rollout.sampler
    samples = _copied(spec, f"{ROLLOUT}.n")
    if spec.algorithm.reads_pairs and "samples_per_prompt" not in rollout.model_fields_set:
        samples.clear()  # nothing is sampled, and the trainer would name it as without effect
    settings: Settings = {
        f"{ROLLOUT}.name": SETTINGS[f"{ROLLOUT}.name"].values[0],
        **samples,
        **_copied(spec, *(f"{ROLLOUT}.{name}" for name in ENGINE_AND_PIPELINE)),
        f"{ROLLOUT}.algo.sde_type": sampler.type or ("dance_sde" if spec.algorithm.name == "DanceGRPO" else "sde"),
        **_copied(
            spec,
            f"{ROLLOUT}.algo.noise_level",
            f"{ROLLOUT}.max_concurrent_requests",
            f"{ROLLOUT}.agent.num_workers",
            f"{ROLLOUT}.dtype",
        ),
    }
    if window := sampler.window:
        settings[f"{ROLLOUT}.algo.sde_window_size"] = window.size
        settings[f"{ROLLOUT}.algo.sde_window_range"] = [window.start, window.end]
        settings[f"{ROLLOUT}.algo.sample_strategy"] = window.placement_with(spec.algorithm.name).lower()
        settings[f"{ROLLOUT}.algo.iters_per_group"] = window.steps_per_place
    return settings


def _prompt_cache(rollout: Rollout, layout: RunLayout) -> Settings:
    """The folder of prompt embeddings, which jobs with the same volume share, and where text encoders are."""
    settings: Settings = {}
    if rollout.engine.prompt_cache:
        settings[f"{ROLLOUT}.prompt_cache_dir"] = prompt_cache_path(posixpath.dirname(layout.run_folder))
    if rollout.engine.offload_text_encoders:
        settings[f"{ROLLOUT}.offload_text_encoders"] = True
    return settings


def _pools(rollout: Rollout, layout: RunLayout) -> Settings:
    """Nodes of standalone engines, what pins the pools to their nodes, and the batches that they generate ahead."""
    if not layout.rollout_nodes:
        return {}
    settings: Settings = {
        ROLLOUT_NODES: layout.rollout_nodes,
        f"{ROLLOUT}.n_gpus_per_node": layout.rollout_accelerators_per_node,
    }
    if rollout.min_replicas:
        engines = layout.rollout_nodes * layout.rollout_accelerators_per_node // rollout.engine.tensor_parallel_size
        settings[f"{ROLLOUT}.min_replicas"] = rollout.min_replicas * engines // rollout.replicas
    if rollout.batches_ahead:
        settings["trainer.use_v1"] = True
        settings["trainer.v1.trainer_mode"] = "separate_async"
        settings["trainer.v1.separate_async.num_warmup_batches"] = rollout.batches_ahead
    if layout.pinned:
        settings |= {f"{ROLLOUT}.node_resource": ROLLOUT_RESOURCE, "trainer.node_resource": TRAINER_RESOURCE}
    if layout.rollout_ray_resource:
        settings[f"{ROLLOUT}.ray_resource"] = layout.rollout_ray_resource
    return settings


def _older_samples(spec: Spec, layout: RunLayout) -> Settings:
    """What limits how far the policy moves from the one that generated older samples: `clip_ratio`, of that ratio.

    The trainer's own default is the reference's, a ratio to the trainer's policy before the update, which is 1 in the
    first optimizer step of a training step. An override of the same group, or one for samples that are not older, is
    the user's choice.
    """
    ahead = layout.rollout_nodes and spec.rollout.batches_ahead
    if not ahead or not limits_older_samples(LOSSES.get(spec.algorithm.name)):
        return {}
    chosen = any(line.lstrip("+").startswith((*CORRECTIONS, SYNC_COMPATIBLE)) for line in spec.algorithm.overrides)
    return {} if chosen else {BYPASS: True}


def _judge(spec: Spec, layout: RunLayout) -> Settings:
    """Settings of the judge that the run serves, and of its nodes if it has separate accelerators."""
    judge = spec.reward.model
    if judge is None:
        return {}
    settings: Settings = {
        f"{JUDGE}.enable": True,
        f"{JUDGE}.model_path": judge.base,
        f"{JUDGE}.rollout.tensor_model_parallel_size": judge.tensor_parallel_size,
    }
    if layout.judge_nodes:
        settings |= {
            f"{JUDGE}.enable_resource_pool": True,
            f"{JUDGE}.nnodes": layout.judge_nodes,
            f"{JUDGE}.n_gpus_per_node": layout.judge_accelerators_per_node,
        }
        if layout.pinned:
            settings |= {f"{JUDGE}.node_resource": REWARD_RESOURCE, "trainer.node_resource": TRAINER_RESOURCE}
        if layout.judge_ray_resource:
            settings[f"{JUDGE}.ray_resource"] = layout.judge_ray_resource
    return settings


def _actor(spec: Spec) -> Settings:
    batch = spec.trainer.batch
    return {
        **_copied(spec, f"{ACTOR}.optim.lr"),
        f"{ACTOR}.ppo_mini_batch_size": batch.mini_batch_prompts or batch.prompts,
        **_copied(spec, f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    }


def _reward(spec: Spec, layout: RunLayout) -> Settings:
    copied = (f"reward.{name}" for name in ("num_workers", "early_stopping_patience", "max_failed_share"))
    pools: Settings = {}
    for scorer in spec.reward.scorers:
        pools |= _pool_of_scorer(spec, scorer, layout)
    return {**_scorers(spec.reward.scorers), **pools, **_copied(spec, *copied)}


def _pool_of_scorer(spec: Spec, scorer: Scorer, layout: RunLayout) -> Settings:
    """Processes of a scorer with a pool, and what pins them to its pods."""
    pool = scorer.pool
    if pool is None:
        return {}
    values: Settings = {"nnodes": pool.replicas, "n_gpus_per_node": pool.accelerator.count if pool.accelerator else 0}
    if layout.pinned:
        values["node_resource"] = scorer_resource(scorer.name)
        resource = ray_resource_of(pool.accelerator or spec.trainer.accelerator)
        if resource != ray_resource_of(spec.trainer.accelerator):
            values["ray_resource"] = resource
    if pool.python:
        values["python"] = pool.python
    settings: Settings = {f"reward.reward_functions.{scorer.name}.pool.{name}": value for name, value in values.items()}
    return settings | ({"trainer.node_resource": TRAINER_RESOURCE} if layout.pinned else {})


def _scorers(scorers: Sequence[Scorer]) -> Settings:
    """A single required scorer is set directly; others need the reward manager of several scorers."""
    if len(scorers) == 1 and scorers[0].required and not scorers[0].pool:
        scorer = scorers[0]
        if scorer.function is None:
            kwargs = {f"reward.scorer_kwargs.{name}": value for name, value in _arguments(scorer).items()}
            return {"reward.scorer": scorer.scorer, **kwargs}
        if not scorer.settings:
            return {
                "reward.custom_reward_function.path": scorer.function.path,
                "reward.custom_reward_function.name": scorer.function.name,
            }
    settings: Settings = {"reward.reward_manager.name": SEVERAL_SCORERS}
    for scorer in scorers:
        function = scorer.function
        which: Settings = {"path": function.path, "name": function.name} if function else {"name": scorer.scorer}
        weighting: Settings = {"weight": scorer.weight, "required": scorer.required}
        if not scorer.is_trained:
            weighting = {"use": EVALUATION}
        part = {**which, **weighting, **_arguments(scorer)}
        settings |= {f"reward.reward_functions.{scorer.name}.{name}": value for name, value in part.items()}
    return settings


def _arguments(scorer: Scorer) -> Settings:
    server: Settings = {}
    if scorer.http:
        server = {"url": scorer.http.url, "timeout": scorer.http.timeout_seconds, "attempts": scorer.http.attempts}
        server |= {"protocol": "pickle"} if scorer.http.protocol == "Pickle" else {}
        if "retry_backoff_seconds" in scorer.http.model_fields_set:
            server["retry_backoff"] = scorer.http.retry_backoff_seconds
    # The models refuse mappings, the only values that `JsonValue` has and `Value` has not.
    return {**server, **cast(Settings, scorer.settings)}


def _trainer(job: DiffusionRLJob, layout: RunLayout) -> Settings:
    spec = job.spec
    tracking = job.spec.observability.tracking
    settings: Settings = {
        **_copied(spec, *(f"trainer.{name}" for name in STEPS)),
        "trainer.resume_mode": "auto" if spec.checkpoint.resume == "Auto" else "disable",
        "trainer.nnodes": layout.nodes,
        "trainer.n_gpus_per_node": layout.accelerators_per_node,
        "trainer.default_local_dir": layout.run_folder,
        "trainer.experiment_name": job.metadata.name,
        "trainer.seed": spec.seed,
    }
    if tracking.loggers:
        settings["trainer.logger"] = tracking.loggers
    if tracking.shown_images:
        settings["trainer.log_val_generations"] = tracking.shown_images
    if tracking.project:
        settings["trainer.project_name"] = tracking.project
    if spec.output:
        settings["trainer.output.url"] = f"{spec.output.url.rstrip('/')}/{job.metadata.name}"
        settings["trainer.output.deadline_s"] = spec.output.deadline_seconds
    if spec.uses_s3 or spec.sends_to_hub:
        # In pods, the endpoint may belong to the store with the model, which an init container downloads.
        elsewhere = not spec.uses_s3 and trainer_variables(job).get(HUB_ENDPOINT)
        location = {"endpoint": None if elsewhere else spec.storage.endpoint, "region": spec.storage.region}
        settings |= {f"trainer.store.{name}": value for name, value in location.items() if value}
    return settings
