"""Estimate of a job from its settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from verl_omni.settings_schema import engine_settings
from verl_omni.trainer.memory_estimate import engine_memory, evaluations, reward_memory, trainer_memory
from verl_omni.trainer.memory_estimate.engine_memory import EngineMemory
from verl_omni.trainer.memory_estimate.estimate import Estimate, Setup, estimate
from verl_omni.trainer.memory_estimate.model_shapes import TRANSFORMER, ModelShapes, read
from verl_omni.trainer.memory_estimate.pair_encoder import CHANNELS, IMAGES
from verl_omni.trainer.memory_estimate.pool_estimate import RolloutPool, estimate_pools
from verl_omni.trainer.memory_estimate.sample_tensors import (
    StoredBytes,
    engine_conditions,
    stored_bytes,
    training_sample,
)
from verl_omni.trainer.memory_estimate.sharding import FLOAT32
from verl_omni.trainer.memory_estimate.trainer_memory import TrainerMemory
from verl_omni.trainer.settings import async_settings, pool_settings, scorer_devices, tensor_split
from verl_omni.trainer.settings.process_counts import BATCHES_IN_FLIGHT
from verl_omni.workers.algorithms.base import training_algorithm


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """An estimate, and what it was made from.

    Attributes:
        estimate: estimate for the trainer's devices and hosts. standalone: estimate for engines on separate devices.
        divisible: what the tensor parallel size of an engine must divide; 0: unknown, so any size may do.
    """

    setup: Setup
    trainer: TrainerMemory
    engine: EngineMemory
    estimate: Estimate
    pool: RolloutPool | None = None
    standalone: Estimate | None = None
    divisible: int = 0


# Settings that the memory of the trained model does not depend on: a change of them alone runs no micro-batch again.
_ROLLOUT = "actor_rollout_ref.rollout"
_FSDP = "actor_rollout_ref.actor.fsdp_config"
NOT_OF_TRAINER = (
    *(f"{_ROLLOUT}.{name}" for name in ("enable_sleep_mode", "free_cache_engine", "max_num_seqs")),
    *(f"{_ROLLOUT}.{name}" for name in ("prompt_cache_dir", "offload_text_encoders")),
    f"{_ROLLOUT}.tensor_model_parallel_size",
    engine_settings.BATCH,
    *(f"{_FSDP}.{name}" for name in ("optimizer_offload", "param_offload")),
)


class JobEstimator:
    """Estimates of one job with several settings: what a change does not concern is measured once.

    Args:
        accelerator: whether the jobs are on accelerators.
    """

    def __init__(self, *, accelerator: bool) -> None:
        self._accelerator = accelerator
        self._trainers: dict[str, TrainerMemory] = {}
        self._passes: dict[str, engine_memory.PassMemory] = {}

    def estimate(self, config: DictConfig) -> JobEstimate:
        """Estimate the memory of a job.

        Args:
            config: settings of the trainer, completed by `startup.fit_to_machine` for a machine with or without
                accelerators; the model's folder is the same for all.

        Raises:
            FileNotFoundError, ValueError: a configuration file of the model is missing, or names an unknown class.
        """
        model = read(Path(config.actor_rollout_ref.model.path))
        sample = training_sample(config, model)
        rollout = config.actor_rollout_ref.rollout
        stored = stored_bytes(sample)
        setup = _setup(config, stored, accelerator=self._accelerator)
        trainer = self._trainer(config, model, sample, setup.ranks)
        engine, samples = _engine(config, model, sample, setup, self._passes)
        counts = tensor_split.divided_counts(config.actor_rollout_ref.model.architecture, model.configs[TRANSFORMER])
        divisible = math.gcd(*counts.values())
        if rollout.nnodes == 0:
            return JobEstimate(setup, trainer, engine, estimate(setup, trainer, engine), divisible=divisible)
        in_flight = min(BATCHES_IN_FLIGHT * engine.batch, samples)
        sample_bytes = stored.total(1, 1) + setup.pixels
        pool = RolloutPool(
            rollout.nnodes, rollout.n_gpus_per_node, pool_settings.replica_size(rollout), in_flight * sample_bytes
        )
        trainer_pool, standalone = estimate_pools(setup, pool, trainer, engine)
        return JobEstimate(setup, trainer, engine, trainer_pool, pool, standalone, divisible)

    def _trainer(
        self, config: DictConfig, model: ModelShapes, sample: Mapping[str, Tensor], ranks: int
    ) -> TrainerMemory:
        # Resolved first: another setting may have the value of one of these.
        concerned = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
        for name in NOT_OF_TRAINER:
            OmegaConf.update(concerned, name, None)
        key = OmegaConf.to_yaml(concerned)
        if key not in self._trainers:
            accelerator = self._accelerator
            self._trainers[key] = trainer_memory.measure(config, model, sample, ranks=ranks, accelerator=accelerator)
        return self._trainers[key]


def _engine(
    config: DictConfig,
    model: ModelShapes,
    sample: Mapping[str, Tensor],
    setup: Setup,
    known: dict[str, engine_memory.PassMemory],
) -> tuple[EngineMemory, int]:
    """Memory of an engine, and the samples that it generates, in training or in an evaluation, whichever are more."""
    rollout = config.actor_rollout_ref.rollout
    replicas = pool_settings.replicas(rollout) or max(1, setup.ranks // pool_settings.replica_size(rollout))
    training = math.ceil(setup.samples / replicas)
    evaluated = 0
    if setup.evaluates:
        count = evaluations.count_samples(config)
        evaluated = BATCHES_IN_FLIGHT * rollout.max_num_seqs if count is None else math.ceil(count / replicas)
    measure = partial(engine_memory.measure, model=model, accelerator=setup.accelerator, known=known)
    evaluation = evaluations.settings_of(config)
    most = max(training, evaluated)
    if setup.samples and (not setup.evaluates or evaluations.have_samples_of_training(config)):
        return measure(config, sample={**engine_conditions(config, model), **sample}, samples=most), most
    engine = measure(evaluation, sample=engine_conditions(evaluation, model), samples=evaluated)
    if not setup.samples:
        return engine, most
    recorded = {**engine_conditions(config, model), **sample}
    return engine.or_larger(measure(config, sample=recorded, samples=training)), most


def _setup(config: DictConfig, stored: StoredBytes, *, accelerator: bool) -> Setup:
    settings = config.actor_rollout_ref
    rollout = settings.rollout
    actor = settings.actor
    prompts = config.data.train_batch_size
    algorithm = training_algorithm(actor.diffusion_loss.loss_mode)
    rows = algorithm.rows_per_prompt(rollout.n)
    per_row = 1 if rows == rollout.n else 2
    offline = config.algorithm.sample_source == "offline"
    pixels = CHANNELS * rollout.pipeline.height * rollout.pipeline.width * rollout.pipeline.num_frames
    value = FLOAT32 if rollout.pipeline.pixel_dtype == "float32" else 1
    group = actor.fsdp_config.ulysses_sequence_parallel_size
    generated = 0 if offline else prompts * rollout.n
    offload = actor.fsdp_config
    rewards = reward_memory.measure(config.reward)
    return Setup(
        nodes=config.trainer.nnodes,
        ranks=config.trainer.nnodes * config.trainer.n_gpus_per_node,
        helpers=rollout.agent.num_workers + config.reward.num_workers,
        accelerator=accelerator,
        samples=generated,
        pairs=group * prompts * IMAGES * pixels if offline else 0,
        evaluates=bool(config.data.val_files),
        stored=0 if offline else stored.total(generated, prompts),
        # Each rank of a group that shares sequences loads the samples of the group. Each image of a pair has a copy of
        # its prompt's embeddings.
        trained=group
        * (prompts * IMAGES * stored.total(1, 1) if offline else stored.total(prompts * rows * per_row, prompts)),
        pixels=value * pixels,
        waiting=generated * value * pixels if scorer_devices.scores_late(config) else 0,
        scorers=config.reward.num_workers if scorer_devices.sharing(config.reward) else 0,
        scorer_weights=rewards.weights,
        scorer_activations=rewards.activations,
        updates=actor.ppo_epochs * math.ceil(prompts / actor.ppo_mini_batch_size),
        sends_adapter=settings.model.lora_rank > 0,
        bucket=rollout.checkpoint_engine.update_weights_bucket_megabytes << 20,
        sleeps=bool(rollout.enable_sleep_mode and rollout.free_cache_engine),
        offloads_weights=accelerator and offload.param_offload,
        offloads_optimizer=accelerator and offload.optimizer_offload,
        copies_checkpoints=actor.checkpoint.async_save,
        regathers=offload.reshard_after_forward,
        ahead=async_settings.batches_ahead(config),
        forks=bool(config.trainer.fork_workers),
    )
