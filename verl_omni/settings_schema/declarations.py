"""Settings of which more is known than the default in verl_omni/trainer/config says."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.setting import Kind, Limit, Setting, broken_limit

ACTOR = "actor_rollout_ref.actor"
FSDP = f"{ACTOR}.fsdp_config"
LOSS = f"{ACTOR}.diffusion_loss"
OPTIM = f"{ACTOR}.optim"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
ALGO = f"{ROLLOUT}.algo"
PIPELINE = f"{ROLLOUT}.pipeline"
EVALUATIONS = f"{ROLLOUT}.val_kwargs"
CORRECTION = "algorithm.rollout_correction"
JUDGE = "reward.reward_model"
V1 = "trainer.v1"
# Groups whose keys the user chooses; the trainer checks some of them.
OPEN_GROUPS = (
    "data.apply_chat_template_kwargs",
    "data.mm_processor_kwargs",
    "reward.reward_functions",
    "reward.scorer_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    engine_settings.GROUP,
    f"{EVALUATIONS}.pipeline",
    f"{EVALUATIONS}.algo",
    f"{OPTIM}.override_optimizer_config",
    f"{MODEL}.extra_tokenizers",
    "ray_kwargs.ray_init",
)
# In these groups, numbers and switches may be null.
NULLABLE_GROUPS = (
    f"{LOSS}.",
    f"{ROLLOUT}.engine_kwargs.",
    f"{EVALUATIONS}.",
    f"{JUDGE}.",
    f"{V1}.",
    "ray_kwargs.",
)
COLOCATED = "naive"  # weight updates of engines on the trainer's accelerators
NETWORK = "omni_tcp"  # weight updates of standalone replicas
# verl's backends for standalone replicas. Weights go over the network of `NETWORK` with each of them.
VERL_BACKENDS = ("nccl", "hccl", "nixl", "mooncake", "kimi_ckpt_engine", "delta_sharded")
ESTIMATORS = ("flow_grpo", "dance_grpo", "mix_grpo")
SDE_TYPES = ("sde", "cps", "dance_sde")
SEVERAL_SCORERS = "MultiVisualRewardManager"  # reward manager of `reward.reward_functions`
TRACKERS_WITH_IMAGES = ("wandb", "tensorboard", "mlflow", "trackio")
RAY_RESOURCES = ("GPU", "NPU")  # what accelerators are to Ray
ALL_LINEAR = "all-linear"  # value of `model.target_modules`
NEW_ALPHA = 64  # of an adapter that does not continue another one
MOST_RANK = 512  # `vllm.config.lora.MaxLoRARanks`
_FLOAT32 = ("float32", "fp32")
_DTYPES = (None, "float32", "bfloat16", "fp32", "bf16")
_SEED_END = 2**32


def positive(advice: str = "") -> Limit:
    """Limit of numbers above 0; nan is none."""
    return Limit("must be positive", lambda value: value > 0, advice)


def not_negative(advice: str = "") -> Limit:
    """Limit of numbers from 0; nan is none."""
    return Limit("must not be negative", lambda value: value >= 0, advice)


POSITIVE = positive()
NOT_NEGATIVE = not_negative()
PART = Limit("must be above 0 and at most 1", lambda value: 0 < value <= 1)
SHARE = Limit("must be from 0 to 1", lambda value: 0 <= value <= 1)
SECONDS = Limit("must be a positive number of seconds", lambda value: 0 < value < math.inf)
COUNT = Limit("must be an integer of at least 1", lambda value: isinstance(value, int) and value >= 1)
# Seeds of which torch's generator on a CPU uses 32 bits: larger ones would be the same as smaller ones.
SEED = Limit(
    f"must be from 0 to {_SEED_END - 1} (2^32 - 1), because a CPU uses 32 bits of a seed",
    lambda value: 0 <= value < _SEED_END,
)
OF_TRAINING = ("clean_latents", "init_same_noise")  # settings of samples that evaluations do not have
LARGEST_RANK = Limit(
    f"must be at most {MOST_RANK}", lambda value: value <= MOST_RANK, "the engine has no larger adapters"
)


def of_evaluations(name: str) -> str | None:
    """The setting of evaluations that is named like one of training samples; None: evaluations have none."""
    is_of_samples = name.startswith((f"{PIPELINE}.", f"{ALGO}.")) and name.rpartition(".")[2] not in OF_TRAINING
    return name.replace(ROLLOUT, EVALUATIONS, 1) if is_of_samples else None


def _of_evaluations(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Settings of evaluations, which have no fields in a job; null is as in training."""
    for setting in settings:
        if name := of_evaluations(setting.name):
            both = ("both",) if setting.name == f"{PIPELINE}.output_type" else ()  # latents and pixels
            values = (None, *setting.values, *both) if setting.values else ()
            yield replace(setting, name=name, field=None, values=values)


_DECLARED = (
    Setting("data.train_files", "spec.data.train", Kind.PATHS, nullable=False),
    Setting("data.val_files", "spec.data.validation", Kind.PATHS, nullable=True),
    Setting("data.train_batch_size", "spec.trainer.batch.prompts", limits=(POSITIVE,)),
    Setting("data.train_max_samples", nullable=True),
    Setting("data.val_max_samples", nullable=True),
    Setting("data.max_prompt_length", "spec.data.promptLength", limits=(POSITIVE,)),
    Setting("data.seed", "spec.seed", nullable=True, limits=(SEED,)),
    Setting("data.return_raw_chat", values=(True,), advice="agent loops take the raw prompt"),
    Setting(
        "data.truncation",
        values=("error", "right"),
        advice="a prompt longer than data.max_prompt_length ends the run, or loses its end; drop it with "
        "data.filter_overlong_prompts=true",
    ),
    Setting(
        "actor_rollout_ref.hybrid_engine",
        values=(True, False),
        advice=f"false is for engines with accelerators of their own ({ROLLOUT}.nnodes > 0)",
    ),
    Setting("actor_rollout_ref.nccl_timeout", kind=Kind.NUMBER, nullable=False, limits=(POSITIVE,)),
    # The model
    Setting(f"{MODEL}.path", "spec.model.base", Kind.PATH, nullable=False),
    Setting(f"{MODEL}.lora_rank", "spec.model.lora", limits=(not_negative("0 trains all weights"), LARGEST_RANK)),
    Setting(f"{MODEL}.lora_alpha", "spec.model.lora.alpha", Kind.NUMBER),
    Setting(f"{MODEL}.lora_adapter_path", "spec.model.lora.startFrom"),
    Setting(f"{MODEL}.target_modules", "spec.model.lora.targetModules"),
    Setting(f"{MODEL}.algorithm", "spec.algorithm.name"),
    Setting(f"{MODEL}.enable_gradient_checkpointing", kind=Kind.SWITCH),
    Setting(f"{MODEL}.lora", values=({},), advice=f"{MODEL}.lora_rank and {MODEL}.lora_alpha set the adapter"),
    Setting(
        f"{MODEL}.lora_dtype",
        values=(None, *_FLOAT32),
        advice=f"trained weights are float32; {FSDP}.mixed_precision.param_dtype sets the computation",
    ),
    Setting(
        f"{MODEL}.lora_init_weights",
        values=("gaussian", "orthogonal", True, False),
        advice="others change the weights that the adapter is added to, which the engine and users of the adapter do "
        "not have, or need data that the trainer does not give them",
    ),
    # The trainer's update
    Setting(f"{ACTOR}.strategy", values=("fsdp2", "fsdp"), advice="both mean FSDP2"),
    Setting(f"{ACTOR}.seed", nullable=True, limits=(SEED,)),
    Setting(f"{ACTOR}.ppo_epochs", limits=(POSITIVE,)),
    Setting(f"{ACTOR}.ppo_mini_batch_size", "spec.trainer.batch.miniBatchPrompts", limits=(POSITIVE,)),
    Setting(
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        "spec.trainer.batch.microBatchSamples",
        Kind.WHOLE,
        limits=(NOT_NEGATIVE,),
    ),
    Setting(f"{ACTOR}.max_skipped_steps", limits=(NOT_NEGATIVE,)),
    Setting(
        f"{ACTOR}.ema_decay",
        kind=Kind.NUMBER,
        limits=(Limit("must be between 0 and 1, or null", lambda value: 0 < value < 1),),
    ),
    # At 0 nothing would be learned, and a negative one would turn the gradient round.
    Setting(f"{ACTOR}.grad_clip", limits=(positive("for gradients that are not clipped, write inf"),)),
    Setting(f"{ACTOR}.kl_loss_coef", limits=(NOT_NEGATIVE,)),
    Setting(f"{LOSS}.loss_mode", "spec.algorithm.name"),
    Setting(f"{OPTIM}.lr", "spec.trainer.learningRate", limits=(NOT_NEGATIVE,)),
    Setting(f"{OPTIM}.eps", limits=(NOT_NEGATIVE,)),
    Setting(f"{OPTIM}.betas", kind=Kind.PAIR, nullable=False, advice="[0.9,0.999]"),
    Setting(f"{OPTIM}.weight_decay", limits=(NOT_NEGATIVE,)),
    Setting(f"{OPTIM}.lr_warmup_steps_ratio", limits=(SHARE,)),
    Setting(f"{OPTIM}.min_lr_ratio", limits=(SHARE,)),
    Setting(f"{OPTIM}.lr_scheduler_type", values=("constant", "cosine"), advice="both begin with lr_warmup_steps"),
    Setting(f"{FSDP}.model_dtype", values=_DTYPES, advice="other dtypes need a loss scale"),
    Setting(
        f"{FSDP}.mixed_precision.param_dtype",
        "spec.trainer.precision",
        values=_DTYPES,
        advice="other dtypes need a loss scale",
    ),
    Setting(f"{FSDP}.mixed_precision.reduce_dtype", values=_FLOAT32, advice="sums of gradients in 16 bits lose terms"),
    Setting(f"{FSDP}.mixed_precision.buffer_dtype", values=_DTYPES, advice="the model runs in no other dtype"),
    # Generation
    Setting(f"{ROLLOUT}.name", "spec.rollout.engine.type", values=("vllm_omni",), advice="there is one engine"),
    Setting(f"{ROLLOUT}.mode", values=("async",), advice="a diffusion rollout is asynchronous"),
    Setting(f"{ROLLOUT}.n", "spec.rollout.samplesPerPrompt", limits=(POSITIVE,)),
    Setting(f"{ROLLOUT}.seed", nullable=True),
    Setting(f"{ROLLOUT}.tensor_model_parallel_size", "spec.rollout.engine.tensorParallelSize"),
    Setting(f"{ROLLOUT}.nnodes", "spec.rollout.replicas"),
    Setting(f"{ROLLOUT}.n_gpus_per_node", "spec.rollout.accelerator.count"),
    Setting(f"{ROLLOUT}.node_resource", "spec.rollout.placement"),
    Setting(f"{ROLLOUT}.ray_resource", "spec.rollout.accelerator"),
    Setting(f"{ROLLOUT}.min_replicas", "spec.rollout.minReplicas", Kind.WHOLE),
    Setting(f"{ROLLOUT}.free_cache_engine", kind=Kind.SWITCH),
    Setting(f"{ROLLOUT}.enable_sleep_mode", kind=Kind.SWITCH),
    Setting(f"{ROLLOUT}.data_parallel_size", limits=(POSITIVE,)),
    Setting(f"{ROLLOUT}.gpu_memory_utilization", limits=(PART,)),
    Setting(
        f"{ROLLOUT}.dtype",
        "spec.rollout.engine.dtype",
        values=(None, "bfloat16", "float32"),
        advice="engine and trainer share these dtypes",
    ),
    Setting(
        f"{ROLLOUT}.load_format",
        values=("auto", "safetensors", "dummy"),
        advice="the engine loads the model's own weights",
    ),
    Setting(f"{ROLLOUT}.deadline_seconds", limits=(SECONDS,)),
    Setting(f"{ROLLOUT}.max_num_seqs", "spec.rollout.engine.maxBatchSize", limits=(POSITIVE,)),
    Setting(f"{ROLLOUT}.max_concurrent_requests", "spec.rollout.engine.maxConcurrentRequests", Kind.WHOLE),
    Setting(f"{ROLLOUT}.max_prompt_embed_length", kind=Kind.WHOLE),
    Setting(f"{ROLLOUT}.prompt_cache_dir", "spec.rollout.engine.promptCache", Kind.PATH),
    Setting(f"{ROLLOUT}.offload_text_encoders", "spec.rollout.engine.offloadTextEncoders"),
    Setting(f"{ROLLOUT}.agent.num_workers", "spec.rollout.agentLoop.workers", Kind.WHOLE),
    Setting(f"{ROLLOUT}.engine_kwargs.vllm_omni.flow_shift", limits=(POSITIVE,)),
    Setting(
        f"{ROLLOUT}.checkpoint_engine.backend",
        values=(None, COLOCATED, NETWORK, *VERL_BACKENDS),
        advice=f"weights reach the engine over IPC, or over TCP with {ROLLOUT}.nnodes > 0",
    ),
    Setting(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", limits=(POSITIVE,)),
    Setting(f"{ROLLOUT}.checkpoint_engine.engine_kwargs.{COLOCATED}.deadline_seconds", limits=(SECONDS,)),
    Setting(f"{ROLLOUT}.checkpoint_engine.engine_kwargs.{NETWORK}.deadline_seconds", limits=(SECONDS,)),
    Setting(
        f"{ROLLOUT}.prometheus.enable",
        values=(False,),
        advice="the engine exports no metrics; the operator does, and trainer.logger takes trackers",
    ),
    Setting(f"{ROLLOUT}.disaggregation.enabled", values=(False,), advice="a diffusion model has no prefill"),
    # The engine treats 0 as "not set", and would use its default.
    Setting(f"{PIPELINE}.height", "spec.rollout.pipeline.height", limits=(POSITIVE,)),
    Setting(f"{PIPELINE}.width", "spec.rollout.pipeline.width", limits=(POSITIVE,)),
    Setting(f"{PIPELINE}.num_frames", limits=(POSITIVE,)),
    Setting(f"{PIPELINE}.num_inference_steps", "spec.rollout.pipeline.steps", limits=(POSITIVE,)),
    Setting(f"{PIPELINE}.max_sequence_length", "spec.rollout.pipeline.maxSequenceLength", limits=(POSITIVE,)),
    Setting(f"{PIPELINE}.video_flow_shift", kind=Kind.NUMBER, limits=(POSITIVE,)),
    Setting(f"{PIPELINE}.guidance_scale", "spec.rollout.pipeline.guidance", limits=(NOT_NEGATIVE,)),
    Setting(f"{PIPELINE}.true_cfg_scale", limits=(NOT_NEGATIVE,)),
    Setting(f"{ALGO}.noise_level", "spec.rollout.sampler.noiseLevel", limits=(NOT_NEGATIVE,)),
    Setting(f"{PIPELINE}.pixel_dtype", values=("uint8", "float32"), advice="a float is from 0 to 1"),
    Setting(f"{PIPELINE}.output_type", values=("image", "pt", "np", "latent"), advice="image, pt and np are pixels"),
    Setting(
        f"{ALGO}.sde_type",
        "spec.rollout.sampler.type",
        values=SDE_TYPES,
        advice="Flow-GRPO's, coefficient-preserving sampling, and DanceGRPO's",
    ),
    Setting(f"{ALGO}.sde_window_size", "spec.rollout.sampler.window.size", Kind.WHOLE),
    Setting(f"{ALGO}.sde_window_range", "spec.rollout.sampler.window", Kind.PAIR, advice="[0,5]"),
    Setting(
        f"{ALGO}.sample_strategy",
        "spec.rollout.sampler.window.placement",
        values=("random", "progressive"),
        advice="a window has a place for each prompt and step (random), or one that moves (progressive)",
    ),
    Setting(f"{ALGO}.iters_per_group", "spec.rollout.sampler.window.stepsPerPlace"),
    Setting(f"{ALGO}.sde_window_seed", kind=Kind.WHOLE),
    Setting(f"{EVALUATIONS}.n", values=(1,), advice="an evaluation generates one sample of each prompt"),
    Setting(f"{EVALUATIONS}.seed", limits=(SEED,)),
    # The algorithm
    Setting(
        "algorithm.adv_estimator", "spec.algorithm.name", values=ESTIMATORS, advice="advantages are group-relative"
    ),
    Setting(
        "algorithm.sample_source",
        values=("online", "offline"),
        advice="the engine generates the samples, or the training data have pairs of images",
    ),
    Setting("algorithm.old_policy_update_interval", nullable=True),
    Setting("algorithm.timestep_fraction", nullable=True),
    Setting(
        f"{CORRECTION}.bypass_mode",
        values=(False, True),
        advice="true takes the engine's log-probabilities as old",
    ),
    Setting(f"{CORRECTION}.loss_type", values=("ppo_clip",), advice="the loss is PPO's clipped one"),
    Setting(
        f"{CORRECTION}.rollout_is",
        values=(None, "token", "sequence"),
        advice="weights are of a recorded step (token), or of a sample (sequence)",
    ),
    Setting(
        f"{CORRECTION}.rollout_is_batch_normalize", values=(False,), advice="weights are not divided by their mean"
    ),
    # Rewards
    Setting("reward.num_workers", "spec.reward.replicas", Kind.WHOLE),
    Setting("reward.max_failed_share", "spec.reward.maxFailedShare", limits=(SHARE,)),
    Setting("reward.early_stopping_patience", "spec.reward.earlyStoppingPatience", Kind.WHOLE, limits=(POSITIVE,)),
    Setting("reward.batch_size", limits=(COUNT,)),
    Setting("reward.deadline_seconds", limits=(SECONDS,)),
    Setting("reward.scorer", "spec.reward.scorers"),
    Setting("reward.scorer_kwargs", "spec.reward.scorers"),
    Setting("reward.custom_reward_function", "spec.reward.scorers"),
    Setting("reward.reward_functions", "spec.reward.scorers"),
    Setting("reward.reward_manager.name", "spec.reward.scorers"),
    Setting(
        "reward.aggregation",
        values=("weighted_mean", "weighted_sum", "normalized_sum"),
        advice="scores are added by their weights",
    ),
    Setting(f"{JUDGE}.enable", "spec.reward.model"),
    Setting(f"{JUDGE}.enable_resource_pool", "spec.reward.model.placement"),
    Setting(f"{JUDGE}.model_path", "spec.reward.model.base"),
    Setting(f"{JUDGE}.nnodes", "spec.reward.model.replicas"),
    Setting(f"{JUDGE}.n_gpus_per_node", "spec.reward.model.accelerator.count"),
    Setting(f"{JUDGE}.node_resource", "spec.reward.model.placement"),
    Setting(f"{JUDGE}.ray_resource", "spec.reward.model.accelerator"),
    Setting(f"{JUDGE}.deadline_seconds", nullable=False, limits=(SECONDS,)),
    Setting(f"{JUDGE}.rollout.tensor_model_parallel_size", "spec.reward.model.tensorParallelSize"),
    Setting(f"{JUDGE}.rollout.name", values=("vllm",), advice="vLLM serves the judge"),
    Setting(f"{JUDGE}.rollout.top_p", kind=Kind.NUMBER),
    # The run
    Setting("trainer.total_training_steps", "spec.trainer.totalSteps", Kind.WHOLE, limits=(POSITIVE,)),
    Setting("trainer.total_epochs", kind=Kind.NUMBER, limits=(POSITIVE,)),
    Setting("trainer.test_freq", "spec.trainer.evalEverySteps"),
    Setting("trainer.n_gpus_per_node", "spec.trainer.accelerator.count", limits=(POSITIVE,)),
    Setting("trainer.nnodes", "spec.trainer.replicas", limits=(POSITIVE,)),
    Setting("trainer.node_resource", "spec.rollout.placement"),
    Setting("trainer.seed", "spec.seed", limits=(SEED,)),
    Setting("trainer.save_freq", "spec.checkpoint.everySteps"),
    Setting("trainer.max_actor_ckpt_to_keep", "spec.checkpoint.keep", nullable=True),
    Setting("trainer.adapter_save_freq", "spec.checkpoint.adapterEverySteps"),
    Setting("trainer.max_adapters_to_keep", "spec.checkpoint.keepAdapters", nullable=True),
    Setting(
        "trainer.resume_mode",
        "spec.checkpoint.resume",
        values=("auto", "disable", "resume_path", "enable"),
        advice="resume_path starts from trainer.resume_from_path, and enable means auto",
    ),
    Setting("trainer.experiment_name", "metadata.name"),
    Setting("trainer.project_name", "spec.observability.tracking.project"),
    Setting("trainer.logger", "spec.observability.tracking.loggers"),
    Setting("trainer.log_val_generations", "spec.observability.tracking.images", limits=(NOT_NEGATIVE,)),
    Setting("trainer.sample_prompts", limits=(NOT_NEGATIVE,)),
    Setting(
        "trainer.video_fps",
        kind=Kind.NUMBER,
        nullable=False,
        limits=(Limit("must be positive, and at most 1000", lambda value: 0 < value <= 1000),),
    ),
    Setting("trainer.rollout_data_max_samples", kind=Kind.WHOLE, limits=(NOT_NEGATIVE,)),
    Setting("trainer.validation_data_max_samples", kind=Kind.WHOLE, limits=(NOT_NEGATIVE,)),
    Setting("trainer.max_log_prob_difference", nullable=True, limits=(NOT_NEGATIVE,)),
    Setting("trainer.max_velocity_difference", nullable=True),
    Setting("trainer.output.url", "spec.output.url"),
    Setting(
        "trainer.output.deadline_s", "spec.output.deadlineSeconds", Kind.NUMBER, nullable=False, limits=(POSITIVE,)
    ),
    Setting("trainer.store.endpoint", "spec.storage.endpoint"),
    Setting("trainer.store.region", "spec.storage.region"),
    Setting("trainer.default_local_dir", "the run folder (drl run --runs DIR)"),
    Setting("trainer.use_v1", "spec.rollout.batchesAhead"),
    Setting(
        f"{V1}.trainer_mode",
        "spec.rollout.batchesAhead",
        values=("sync", "separate_async"),
        advice=f"with {ROLLOUT}.nnodes > 0, separate_async overlaps generation and update",
    ),
    Setting(f"{V1}.separate_async.num_warmup_batches", "spec.rollout.batchesAhead"),
    Setting(
        f"{V1}.sampler.max_off_policy_strategy",
        values=("wait", "drop"),
        advice="beyond max_off_policy_threshold, wait refuses the run, and drop generates fewer batches ahead",
    ),
    Setting("trainer.fork_workers", kind=Kind.SWITCH),
    Setting("ray_kwargs.ray_init.num_cpus", kind=Kind.WHOLE, limits=(POSITIVE,)),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in (*_DECLARED, *_of_evaluations(_DECLARED))}
# The job's field of each setting that has one.
FIELDS: dict[str, str] = {name: setting.field for name, setting in SETTINGS.items() if setting.field}
# With the job's algorithm Custom, overrides set these.
OF_THE_ALGORITHM = tuple(name for name, field in FIELDS.items() if field == "spec.algorithm.name")


def field_of(name: str) -> str | None:
    """The job's field that sets a setting, one inside it or a group around it; None if overrides may set it."""
    for known, field in FIELDS.items():
        if name == known or name.startswith(f"{known}.") or known.startswith(f"{name}."):
            return field
    return None


def may_be_null(name: str) -> bool:
    """Whether a setting whose type is checked may be null."""
    setting = SETTINGS.get(name)
    if setting is not None and setting.nullable is not None:
        return setting.nullable
    return bool(setting and setting.kind) or name.startswith(NULLABLE_GROUPS)


def out_of_range(name: str, value: object) -> str | None:
    """What is wrong with a number; None: nothing, or it is no number."""
    setting = SETTINGS.get(name)
    return None if setting is None else broken_limit(setting.limits, value)
