"""Trainer settings that a field of the job sets; overrides may not set them as well."""

from __future__ import annotations

RESERVED = {
    "actor_rollout_ref.model.path": "spec.model.base",
    "actor_rollout_ref.model.lora_rank": "spec.model.lora",
    "actor_rollout_ref.model.lora_alpha": "spec.model.lora.alpha",
    "actor_rollout_ref.model.lora_adapter_path": "spec.model.lora.startFrom",
    "actor_rollout_ref.model.target_modules": "spec.model.lora.targetModules",
    "actor_rollout_ref.model.algorithm": "spec.algorithm.name",
    "actor_rollout_ref.actor.diffusion_loss.loss_mode": "spec.algorithm.name",
    "algorithm.adv_estimator": "spec.algorithm.name",
    "data.train_files": "spec.data.train",
    "data.val_files": "spec.data.validation",
    "data.train_batch_size": "spec.trainer.batch.prompts",
    "data.max_prompt_length": "spec.data.promptLength",
    "data.seed": "spec.seed",
    "actor_rollout_ref.rollout.name": "spec.rollout.engine.type",
    "actor_rollout_ref.rollout.n": "spec.rollout.samplesPerPrompt",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "spec.rollout.engine.tensorParallelSize",
    "actor_rollout_ref.rollout.nnodes": "spec.rollout.replicas",
    "actor_rollout_ref.rollout.n_gpus_per_node": "spec.rollout.accelerator.count",
    "actor_rollout_ref.rollout.node_resource": "spec.rollout.placement",
    "actor_rollout_ref.rollout.ray_resource": "spec.rollout.accelerator",
    "actor_rollout_ref.rollout.min_replicas": "spec.rollout.minReplicas",
    "trainer.use_v1": "spec.rollout.batchesAhead",
    "trainer.v1.trainer_mode": "spec.rollout.batchesAhead",
    "trainer.v1.separate_async.num_warmup_batches": "spec.rollout.batchesAhead",
    "actor_rollout_ref.rollout.dtype": "spec.rollout.engine.dtype",
    "actor_rollout_ref.rollout.max_num_seqs": "spec.rollout.engine.maxBatchSize",
    "actor_rollout_ref.rollout.max_concurrent_requests": "spec.rollout.engine.maxConcurrentRequests",
    "actor_rollout_ref.rollout.agent.num_workers": "spec.rollout.agentLoop.workers",
    "actor_rollout_ref.rollout.pipeline.height": "spec.rollout.pipeline.height",
    "actor_rollout_ref.rollout.pipeline.width": "spec.rollout.pipeline.width",
    "actor_rollout_ref.rollout.pipeline.num_inference_steps": "spec.rollout.pipeline.steps",
    "actor_rollout_ref.rollout.pipeline.guidance_scale": "spec.rollout.pipeline.guidance",
    "actor_rollout_ref.rollout.pipeline.max_sequence_length": "spec.rollout.pipeline.maxSequenceLength",
    "actor_rollout_ref.rollout.algo.sde_type": "spec.rollout.sampler.type",
    "actor_rollout_ref.rollout.algo.noise_level": "spec.rollout.sampler.noiseLevel",
    "actor_rollout_ref.rollout.algo.sde_window_size": "spec.rollout.sampler.window.size",
    "actor_rollout_ref.rollout.algo.sde_window_range": "spec.rollout.sampler.window",
    "actor_rollout_ref.rollout.algo.sample_strategy": "spec.rollout.sampler.window.placement",
    "actor_rollout_ref.rollout.algo.iters_per_group": "spec.rollout.sampler.window.stepsPerPlace",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "spec.trainer.precision",
    "actor_rollout_ref.actor.optim.lr": "spec.trainer.learningRate",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "spec.trainer.batch.miniBatchPrompts",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "spec.trainer.batch.microBatchSamples",
    "reward.early_stopping_patience": "spec.reward.earlyStoppingPatience",
    "reward.num_workers": "spec.reward.replicas",
    "reward.reward_model.enable": "spec.reward.model",
    "reward.reward_model.enable_resource_pool": "spec.reward.model.placement",
    "reward.reward_model.model_path": "spec.reward.model.base",
    "reward.reward_model.nnodes": "spec.reward.model.replicas",
    "reward.reward_model.n_gpus_per_node": "spec.reward.model.accelerator.count",
    "reward.reward_model.node_resource": "spec.reward.model.placement",
    "reward.reward_model.ray_resource": "spec.reward.model.accelerator",
    "reward.reward_model.rollout.tensor_model_parallel_size": "spec.reward.model.tensorParallelSize",
    "reward.scorer": "spec.reward.scorers",
    "reward.scorer_kwargs": "spec.reward.scorers",
    "reward.custom_reward_function": "spec.reward.scorers",
    "reward.reward_functions": "spec.reward.scorers",
    "reward.reward_manager.name": "spec.reward.scorers",
    "trainer.total_training_steps": "spec.trainer.totalSteps",
    "trainer.test_freq": "spec.trainer.evalEverySteps",
    "trainer.n_gpus_per_node": "spec.trainer.accelerator.count",
    "trainer.nnodes": "spec.trainer.replicas",
    "trainer.node_resource": "spec.rollout.placement",
    "trainer.seed": "spec.seed",
    "trainer.save_freq": "spec.checkpoint.everySteps",
    "trainer.max_actor_ckpt_to_keep": "spec.checkpoint.keep",
    "trainer.resume_mode": "spec.checkpoint.resume",
    "trainer.experiment_name": "metadata.name",
    "trainer.project_name": "spec.observability.tracking.project",
    "trainer.log_val_generations": "spec.observability.tracking.images",
    "trainer.logger": "spec.observability.tracking.loggers",
    "trainer.output.url": "spec.output.url",
    "trainer.output.deadline_s": "spec.output.deadlineSeconds",
    "trainer.store.endpoint": "spec.storage.endpoint",
    "trainer.store.region": "spec.storage.region",
    "trainer.default_local_dir": "the run folder (drl run --runs DIR)",
}


# With the algorithm Custom, overrides set these.
OF_THE_ALGORITHM = tuple(name for name, owner in RESERVED.items() if owner == "spec.algorithm.name")


def owner_of(setting: str) -> str | None:
    """The field that sets `setting`, a setting inside it or a group around it; None if overrides may set it."""
    for reserved, owner in RESERVED.items():
        if setting == reserved or setting.startswith(f"{reserved}.") or reserved.startswith(f"{setting}."):
            return owner
    return None
