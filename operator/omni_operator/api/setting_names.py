"""Names of the trainer's settings. Written from verl_omni/trainer/config by `make crds`; do not edit."""

# fmt: off
# ruff: noqa: E501
from __future__ import annotations

# Settings of every algorithm.
COMMON = (
    "actor_rollout_ref", "actor_rollout_ref.actor", "actor_rollout_ref.actor._target_",
    "actor_rollout_ref.actor.checkpoint", "actor_rollout_ref.actor.checkpoint._target_",
    "actor_rollout_ref.actor.checkpoint.async_save", "actor_rollout_ref.actor.diffusion_loss",
    "actor_rollout_ref.actor.diffusion_loss._target_", "actor_rollout_ref.actor.diffusion_loss.loss_mode",
    "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.actor.fsdp_config._target_",
    "actor_rollout_ref.actor.fsdp_config.fsdp_size", "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision._target_",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype",
    "actor_rollout_ref.actor.fsdp_config.model_dtype", "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.actor.fsdp_config.param_offload", "actor_rollout_ref.actor.fsdp_config.reshard_after_forward",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation", "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.max_skipped_steps", "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.actor.optim._target_", "actor_rollout_ref.actor.optim.betas",
    "actor_rollout_ref.actor.optim.eps", "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.optim.lr_scheduler_type", "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "actor_rollout_ref.actor.optim.min_lr_ratio",
    "actor_rollout_ref.actor.optim.num_cycles", "actor_rollout_ref.actor.optim.override_optimizer_config",
    "actor_rollout_ref.actor.optim.total_training_steps", "actor_rollout_ref.actor.optim.weight_decay",
    "actor_rollout_ref.actor.ppo_epochs", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.seed", "actor_rollout_ref.actor.shuffle",
    "actor_rollout_ref.actor.strategy", "actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.hybrid_engine",
    "actor_rollout_ref.model", "actor_rollout_ref.model._target_", "actor_rollout_ref.model.algorithm",
    "actor_rollout_ref.model.architecture", "actor_rollout_ref.model.attn_backend",
    "actor_rollout_ref.model.custom_chat_template", "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.exclude_modules", "actor_rollout_ref.model.external_lib",
    "actor_rollout_ref.model.extra_tokenizers", "actor_rollout_ref.model.fsdp_layer_prefixes",
    "actor_rollout_ref.model.lora", "actor_rollout_ref.model.lora_alpha", "actor_rollout_ref.model.lora_dtype",
    "actor_rollout_ref.model.lora_init_weights", "actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.policy_state_adapters", "actor_rollout_ref.model.target_modules",
    "actor_rollout_ref.model.tokenizer_path", "actor_rollout_ref.model.trust_remote_code",
    "actor_rollout_ref.nccl_timeout", "actor_rollout_ref.rollout", "actor_rollout_ref.rollout._target_",
    "actor_rollout_ref.rollout.agent", "actor_rollout_ref.rollout.agent._target_",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path", "actor_rollout_ref.rollout.agent.default_agent_loop",
    "actor_rollout_ref.rollout.agent.num_workers", "actor_rollout_ref.rollout.algo",
    "actor_rollout_ref.rollout.algo._target_", "actor_rollout_ref.rollout.algo.clean_latents",
    "actor_rollout_ref.rollout.algo.init_same_noise", "actor_rollout_ref.rollout.algo.iters_per_group",
    "actor_rollout_ref.rollout.algo.noise_level", "actor_rollout_ref.rollout.algo.sample_strategy",
    "actor_rollout_ref.rollout.algo.sde_type", "actor_rollout_ref.rollout.algo.sde_window_range",
    "actor_rollout_ref.rollout.algo.sde_window_seed", "actor_rollout_ref.rollout.algo.sde_window_size",
    "actor_rollout_ref.rollout.calculate_log_probs", "actor_rollout_ref.rollout.checkpoint_engine",
    "actor_rollout_ref.rollout.checkpoint_engine._target_", "actor_rollout_ref.rollout.checkpoint_engine.backend",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.naive",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.naive.deadline_seconds",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "actor_rollout_ref.rollout.data_parallel_size", "actor_rollout_ref.rollout.deadline_seconds",
    "actor_rollout_ref.rollout.disable_log_stats", "actor_rollout_ref.rollout.disaggregation",
    "actor_rollout_ref.rollout.disaggregation.enabled", "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.rollout.enable_sleep_mode", "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.engine_kwargs", "actor_rollout_ref.rollout.engine_kwargs.vllm_omni",
    "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.distributed_executor_backend",
    "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.request_batch_max_wait_ms",
    "actor_rollout_ref.rollout.external_lib", "actor_rollout_ref.rollout.free_cache_engine",
    "actor_rollout_ref.rollout.full_determinism", "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.load_format", "actor_rollout_ref.rollout.max_concurrent_requests",
    "actor_rollout_ref.rollout.max_num_seqs", "actor_rollout_ref.rollout.max_prompt_embed_length",
    "actor_rollout_ref.rollout.mode", "actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.nnodes", "actor_rollout_ref.rollout.pipeline",
    "actor_rollout_ref.rollout.pipeline._target_", "actor_rollout_ref.rollout.pipeline.guidance_scale",
    "actor_rollout_ref.rollout.pipeline.height", "actor_rollout_ref.rollout.pipeline.max_sequence_length",
    "actor_rollout_ref.rollout.pipeline.num_frames", "actor_rollout_ref.rollout.pipeline.num_inference_steps",
    "actor_rollout_ref.rollout.pipeline.output_type", "actor_rollout_ref.rollout.pipeline.pixel_dtype",
    "actor_rollout_ref.rollout.pipeline.true_cfg_scale", "actor_rollout_ref.rollout.pipeline.width",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size", "actor_rollout_ref.rollout.prometheus",
    "actor_rollout_ref.rollout.prometheus._target_", "actor_rollout_ref.rollout.prometheus.enable",
    "actor_rollout_ref.rollout.prompt_length", "actor_rollout_ref.rollout.rollout_adapter",
    "actor_rollout_ref.rollout.rollout_attn_backend", "actor_rollout_ref.rollout.router_config_path",
    "actor_rollout_ref.rollout.seed", "actor_rollout_ref.rollout.step_execution",
    "actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.val_kwargs",
    "actor_rollout_ref.rollout.val_kwargs._target_", "actor_rollout_ref.rollout.val_kwargs.algo",
    "actor_rollout_ref.rollout.val_kwargs.algo.noise_level", "actor_rollout_ref.rollout.val_kwargs.n",
    "actor_rollout_ref.rollout.val_kwargs.pipeline", "actor_rollout_ref.rollout.val_kwargs.seed", "algorithm",
    "algorithm.adv_estimator", "algorithm.global_std", "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.rollout_correction", "algorithm.rollout_correction.bypass_mode",
    "algorithm.rollout_correction.loss_type", "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_correction.rollout_is_batch_normalize", "algorithm.rollout_correction.rollout_is_threshold",
    "algorithm.rollout_correction.rollout_rs", "algorithm.rollout_correction.rollout_rs_threshold",
    "algorithm.timestep_fraction", "data", "data.apply_chat_template_kwargs", "data.cache_dir", "data.custom_cls",
    "data.custom_cls.name", "data.custom_cls.path", "data.filter_overlong_prompts", "data.max_prompt_length",
    "data.mm_processor_kwargs", "data.prompt_key", "data.return_raw_chat", "data.seed", "data.shuffle",
    "data.train_batch_size", "data.train_files", "data.train_max_samples", "data.truncation", "data.trust_remote_code",
    "data.val_files", "data.val_max_samples", "ray_kwargs", "ray_kwargs.ray_init", "ray_kwargs.ray_init.address",
    "ray_kwargs.ray_init.num_cpus", "reward", "reward.aggregation", "reward.batch_size",
    "reward.custom_reward_function", "reward.custom_reward_function.name", "reward.custom_reward_function.path",
    "reward.deadline_seconds", "reward.num_workers", "reward.reward_functions", "reward.reward_manager",
    "reward.reward_manager.module", "reward.reward_manager.module.path", "reward.reward_manager.name",
    "reward.reward_manager.source", "reward.reward_model", "reward.reward_model.enable",
    "reward.reward_model.enable_resource_pool", "reward.scorer", "reward.scorer_kwargs", "trainer",
    "trainer.default_local_dir", "trainer.experiment_name", "trainer.fork_workers", "trainer.log_val_generations",
    "trainer.logger", "trainer.max_actor_ckpt_to_keep", "trainer.max_log_prob_difference", "trainer.n_gpus_per_node",
    "trainer.nnodes", "trainer.project_name", "trainer.resume_from_path", "trainer.resume_mode",
    "trainer.rollout_data_dir", "trainer.rollout_data_max_samples", "trainer.rollout_data_save_freq",
    "trainer.sample_prompts", "trainer.save_freq", "trainer.seed", "trainer.test_freq", "trainer.total_epochs",
    "trainer.total_training_steps", "trainer.val_before_train", "trainer.validation_data_dir",
    "trainer.validation_data_max_samples",
)
# Settings of one algorithm, by the trainer's name of it.
BY_LOSS = {
    "flow_grpo": (
        "actor_rollout_ref.actor.diffusion_loss.adv_clip_max", "actor_rollout_ref.actor.diffusion_loss.clip_ratio",
        "actor_rollout_ref.actor.diffusion_loss.exact_kl", "actor_rollout_ref.actor.kl_loss_coef",
    ),
    "diffusion_nft": (
        "actor_rollout_ref.actor.diffusion_loss.adaptive_weight_min",
        "actor_rollout_ref.actor.diffusion_loss.adv_clip_max", "actor_rollout_ref.actor.diffusion_loss.draws",
        "actor_rollout_ref.actor.diffusion_loss.mix_beta", "actor_rollout_ref.actor.diffusion_loss.old_decay_max",
        "actor_rollout_ref.actor.diffusion_loss.old_decay_rate", "actor_rollout_ref.actor.diffusion_loss.ref_kl_coef",
    ),
    "diffusion_dpo": (
        "actor_rollout_ref.actor.diffusion_loss.dpo_beta", "actor_rollout_ref.actor.diffusion_loss.draws",
    ),
}
# Groups whose keys the user chooses.
OPEN = (
    "actor_rollout_ref.actor.optim.override_optimizer_config", "actor_rollout_ref.model.extra_tokenizers",
    "actor_rollout_ref.rollout.engine_kwargs.vllm_omni", "actor_rollout_ref.rollout.val_kwargs.algo",
    "actor_rollout_ref.rollout.val_kwargs.pipeline", "data.apply_chat_template_kwargs", "data.mm_processor_kwargs",
    "ray_kwargs.ray_init", "reward.reward_functions", "reward.scorer_kwargs",
)
# Settings of the reference, by the setting here that has their value. In a name, `.*` stands for a group.
ELSEWHERE = {
    "actor_rollout_ref.actor.fsdp_config.dtype": "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.actor.fsdp_config.strategy": "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.optim.clip_grad": "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.rollout_correction.bypass_mode": "algorithm.rollout_correction.bypass_mode",
    "actor_rollout_ref.actor.rollout_correction.loss_type": "algorithm.rollout_correction.loss_type",
    "actor_rollout_ref.actor.rollout_correction.rollout_is": "algorithm.rollout_correction.rollout_is",
    "actor_rollout_ref.actor.rollout_correction.rollout_is_batch_normalize": "algorithm.rollout_correction.rollout_is_batch_normalize",
    "actor_rollout_ref.actor.rollout_correction.rollout_is_threshold": "algorithm.rollout_correction.rollout_is_threshold",
    "actor_rollout_ref.actor.rollout_correction.rollout_rs": "algorithm.rollout_correction.rollout_rs",
    "actor_rollout_ref.actor.rollout_correction.rollout_rs_threshold": "algorithm.rollout_correction.rollout_rs_threshold",
    "actor_rollout_ref.actor.rollout_n": "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.model.algo.noise_level": "actor_rollout_ref.rollout.algo.noise_level",
    "actor_rollout_ref.model.algo.sde_type": "actor_rollout_ref.rollout.algo.sde_type",
    "actor_rollout_ref.model.algo.sde_window_range": "actor_rollout_ref.rollout.algo.sde_window_range",
    "actor_rollout_ref.model.algo.sde_window_size": "actor_rollout_ref.rollout.algo.sde_window_size",
    "actor_rollout_ref.model.pipeline.guidance_scale": "actor_rollout_ref.rollout.pipeline.guidance_scale",
    "actor_rollout_ref.model.pipeline.height": "actor_rollout_ref.rollout.pipeline.height",
    "actor_rollout_ref.model.pipeline.max_sequence_length": "actor_rollout_ref.rollout.pipeline.max_sequence_length",
    "actor_rollout_ref.model.pipeline.num_frames": "actor_rollout_ref.rollout.pipeline.num_frames",
    "actor_rollout_ref.model.pipeline.num_inference_steps": "actor_rollout_ref.rollout.pipeline.num_inference_steps",
    "actor_rollout_ref.model.pipeline.true_cfg_scale": "actor_rollout_ref.rollout.pipeline.true_cfg_scale",
    "actor_rollout_ref.model.pipeline.width": "actor_rollout_ref.rollout.pipeline.width",
    "actor_rollout_ref.ref.rollout_n": "actor_rollout_ref.rollout.n",
}
# Settings of the reference that have no effect here.
WITHOUT_EFFECT = (
    "actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref.actor.distill_loss_coef",
    "actor_rollout_ref.actor.distill_loss_mode", "actor_rollout_ref.actor.fsdp_config.seed",
    "actor_rollout_ref.actor.fsdp_config.use_orig_params", "actor_rollout_ref.actor.profiler.*",
    "actor_rollout_ref.model.model_type", "actor_rollout_ref.ref.*", "actor_rollout_ref.ref.profiler.*",
    "actor_rollout_ref.rollout.enable_chunked_prefill", "actor_rollout_ref.rollout.enable_prefix_caching",
    "actor_rollout_ref.rollout.layered_summon", "actor_rollout_ref.rollout.llm_calculate_log_probs",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", "actor_rollout_ref.rollout.logprobs_mode",
    "actor_rollout_ref.rollout.max_model_len", "actor_rollout_ref.rollout.max_new_tokens",
    "actor_rollout_ref.rollout.max_num_batched_tokens", "actor_rollout_ref.rollout.profiler.*",
    "actor_rollout_ref.rollout.repetition_penalty", "actor_rollout_ref.rollout.scheduling_policy",
    "actor_rollout_ref.rollout.skip_tokenizer_init", "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_k", "actor_rollout_ref.rollout.top_p", "algorithm.paired_preference",
    "algorithm.trainer_type", "data.dataloader_num_workers", "data.filter_overlong_prompts_workers",
    "data.max_response_length", "data.return_full_prompt", "data.return_multi_modal_inputs",
    "data.return_raw_input_ids", "data.val_batch_size", "data.validation_shuffle", "distillation.*",
    "global_profiler.*", "reward.reward_model.*", "reward.sandbox_fusion.*", "skip.async_rollout.action",
    "skip.async_rollout.dump_dir", "skip.async_rollout.steps", "skip.rollout.action", "skip.rollout.dump_dir",
    "skip.rollout.steps", "trainer.device", "trainer.ray_master_port_range", "trainer.ray_wait_register_center_timeout",
    "trainer.v1.*", "trainer.video_fps", "transfer_queue.backend.*", "transfer_queue.metrics.*",
)
# Settings with the only values that are accepted, and what to write instead of others.
REJECTED: tuple[tuple[tuple[object, ...], str, tuple[str, ...]], ...] = (
    ((['model', 'optimizer', 'extra'],), "a checkpoint has everything that a run needs to go on", (
        "actor_rollout_ref.actor.checkpoint.load_contents", "actor_rollout_ref.actor.checkpoint.save_contents",
    )),
    ((True,), "Flow-DPPO, whose setting it is, is not supported", (
        "actor_rollout_ref.actor.diffusion_loss.add_kl_coefficient",
    )),
    ((1e-05,), "Flow-DPPO, whose setting it is, is not supported", (
        "actor_rollout_ref.actor.diffusion_loss.kl_mask_threshold",
    )),
    ((False,), "this trainer does not have it", (
        "actor_rollout_ref.actor.fsdp_config.forward_only", "actor_rollout_ref.actor.fsdp_config.forward_prefetch",
        "actor_rollout_ref.actor.fsdp_config.full_determinism", "skip.async_rollout.enable", "skip.rollout.enable",
        "trainer.use_v1", "trainer.val_only", "transfer_queue.enable",
    )),
    ((False,), "param_offload=true and optimizer_offload=true keep both in host memory during generation", (
        "actor_rollout_ref.actor.fsdp_config.offload_policy",
    )),
    ((0, None), "the layers that are sharded one by one are chosen by model.fsdp_layer_prefixes", (
        "actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params",
        "actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",
    )),
    ((None,), "the loss is the mean over the samples of a mini-batch", (
        "actor_rollout_ref.actor.loss_scale_factor",
    )),
    (('AdamW',), "the optimizer is AdamW", (
        "actor_rollout_ref.actor.optim.optimizer",
    )),
    (('torch.optim',), "the optimizer is torch's", (
        "actor_rollout_ref.actor.optim.optimizer_impl",
    )),
    ((None,), "write actor.optim.lr_scheduler_type", (
        "actor_rollout_ref.actor.optim.warmup_style",
    )),
    ((True,), "optimizer steps are counted from 0", (
        "actor_rollout_ref.actor.optim.zero_indexed_step",
    )),
    ((False,), "distillation from a teacher is not supported", (
        "actor_rollout_ref.actor.use_distill_loss", "distillation.enabled",
    )),
    ((None,), "the engine VeOmni is not supported; models are trained with FSDP2", (
        "actor_rollout_ref.actor.veomni_config.*", "actor_rollout_ref.ref.veomni_config.*", "diffusion/model_engine",
    )),
    ((True,), "the steps of a window are contiguous", (
        "actor_rollout_ref.model.algo.sde_contiguous", "actor_rollout_ref.rollout.algo.sde_contiguous",
    )),
    ((None,), "the settings of a model are those of its folder", (
        "actor_rollout_ref.model.config_path",
    )),
    ((None,), "training starts from a new adapter", (
        "actor_rollout_ref.model.lora_adapter_path",
    )),
    ((False,), "it is of models that generate tokens", (
        "actor_rollout_ref.model.mtp.enable", "actor_rollout_ref.rollout.multi_turn.enable",
    )),
    ((24.0,), "no supported model family reads it", (
        "actor_rollout_ref.model.pipeline.frame_rate", "actor_rollout_ref.rollout.pipeline.frame_rate",
    )),
    ((12.0,), "no supported model family reads it", (
        "actor_rollout_ref.model.pipeline.video_flow_shift", "actor_rollout_ref.rollout.pipeline.video_flow_shift",
    )),
    ((None,), "write model.target_modules", (
        "actor_rollout_ref.model.target_parameters",
    )),
    (('transformer',), "the transformer of a model is in its folder transformer", (
        "actor_rollout_ref.model.transformer_subfolder",
    )),
    ((False,), "files are read where they are", (
        "actor_rollout_ref.model.use_shm", "data.use_shm",
    )),
    ((None,), "the engine does not support it", (
        "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module",
        "actor_rollout_ref.rollout.cudagraph_capture_sizes", "actor_rollout_ref.rollout.mtp",
        "actor_rollout_ref.rollout.quantization",
    )),
    ((False,), "the engine does not support it", (
        "actor_rollout_ref.rollout.enable_rollout_routing_replay",
    )),
    ((1,), "the engine does not support it", (
        "actor_rollout_ref.rollout.expert_parallel_size",
    )),
    ((None,), "no supported model family reads it; write pipeline.height and pipeline.width", (
        "actor_rollout_ref.rollout.pipeline.aspect_ratio",
    )),
    (('continuous',), "advantages are used as they are", (
        "algorithm.adv_mode",
    )),
    ((None, 1), "write actor.diffusion_loss.old_decay_rate and actor.diffusion_loss.old_decay_max", (
        "algorithm.old_policy_decay", "algorithm.old_policy_decay_schedule", "algorithm.old_policy_update_interval",
    )),
    (('online',), "samples are drawn by the engine; a data set of preferences is not supported", (
        "algorithm.sample_source",
    )),
    ((None,), "rows are read by data.custom_cls", (
        "data.custom_cls.collate_fn", "data.datagen.name", "data.datagen.path", "data.sampler.*", "data.tokenizer",
    )),
    (('images',), "prompts are text", (
        "data.image_key",
    )),
    ((14,), "prompts are text", (
        "data.image_patch_size",
    )),
    (('data_source',), "the column data_source names the scorer of a row", (
        "data.reward_fn_key",
    )),
    ((None,), "there are no tools", (
        "data.tool_config_path",
    )),
    (('videos',), "prompts are text", (
        "data.video_key",
    )),
    ((None,), "this trainer does not have it", (
        "ray_kwargs.timeline_json_file", "trainer.default_hdfs_dir",
    )),
    ((False,), "trainer.max_actor_ckpt_to_keep says how many checkpoints are kept", (
        "trainer.del_local_ckpt_after_load",
    )),
    ((0,), "a run that is interrupted saves a checkpoint after its step", (
        "trainer.esi_redundant_time",
    )),
    (('sync',), "a step generates, scores and updates one after another", (
        "trainer.v1.trainer_mode",
    )),
    ((None, 'float32', 'bfloat16', 'fp32', 'bf16'), "the model runs in no other dtype", (
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype",
    )),
    ((None, 'float32', 'bfloat16', 'fp32', 'bf16'), "other dtypes need a loss scale", (
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
        "actor_rollout_ref.actor.fsdp_config.model_dtype",
    )),
    (('float32', 'fp32'), "sums of gradients in 16 bits lose terms", (
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype",
    )),
    (('fsdp2', 'fsdp'), "both mean FSDP2", (
        "actor_rollout_ref.actor.strategy",
    )),
    ((True,), "trainer and engine share their accelerators", (
        "actor_rollout_ref.hybrid_engine",
    )),
    (({},), "actor_rollout_ref.model.lora_rank and actor_rollout_ref.model.lora_alpha set the adapter", (
        "actor_rollout_ref.model.lora",
    )),
    ((None, 'float32', 'fp32'), "trained weights are float32; actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype sets the computation", (
        "actor_rollout_ref.model.lora_dtype",
    )),
    (('naive',), "weights reach the engine over IPC", (
        "actor_rollout_ref.rollout.checkpoint_engine.backend",
    )),
    ((False,), "a diffusion model has no prefill", (
        "actor_rollout_ref.rollout.disaggregation.enabled",
    )),
    ((None, 'bfloat16', 'float32'), "engine and trainer share these dtypes", (
        "actor_rollout_ref.rollout.dtype",
    )),
    (('auto', 'safetensors'), "the engine loads the model's own weights", (
        "actor_rollout_ref.rollout.load_format",
    )),
    (('async',), "a diffusion rollout is asynchronous", (
        "actor_rollout_ref.rollout.mode",
    )),
    (('vllm_omni',), "there is one engine", (
        "actor_rollout_ref.rollout.name",
    )),
    ((0,), "the engine has no nodes of its own", (
        "actor_rollout_ref.rollout.nnodes",
    )),
    ((False,), "the engine exports no metrics; the operator does, and trainer.logger takes trackers", (
        "actor_rollout_ref.rollout.prometheus.enable",
    )),
    ((1,), "an evaluation draws one sample of each prompt", (
        "actor_rollout_ref.rollout.val_kwargs.n",
    )),
    (('flow_grpo',), "advantages are group-relative", (
        "algorithm.adv_estimator",
    )),
    ((False, True), "true takes the engine's log-probabilities as old", (
        "algorithm.rollout_correction.bypass_mode",
    )),
    (('ppo_clip',), "the loss is PPO's clipped one", (
        "algorithm.rollout_correction.loss_type",
    )),
    ((None, 'token', 'sequence'), "weights are of a recorded step (token), or of a sample (sequence)", (
        "algorithm.rollout_correction.rollout_is",
    )),
    ((False,), "weights are not divided by their mean", (
        "algorithm.rollout_correction.rollout_is_batch_normalize",
    )),
    ((None,), "no sample is rejected; algorithm.rollout_correction.rollout_is=sequence gives the unlikely ones less weight", (
        "algorithm.rollout_correction.rollout_rs",
    )),
    ((None,), "no sample is rejected", (
        "algorithm.rollout_correction.rollout_rs_threshold",
    )),
    ((True,), "agent loops take the raw prompt", (
        "data.return_raw_chat",
    )),
    (('error', 'right'), "a prompt longer than data.max_prompt_length ends the run, or loses its end; drop it with data.filter_overlong_prompts=true", (
        "data.truncation",
    )),
    (('weighted_mean', 'weighted_sum'), "scores are added by their weights", (
        "reward.aggregation",
    )),
    ((False,), "verl's reward-model server is not started; serve the model yourself and write reward.scorer=http", (
        "reward.reward_model.enable",
    )),
    ((False,), "there is no reward-model server", (
        "reward.reward_model.enable_resource_pool",
    )),
    (('auto', 'disable', 'resume_path'), "resume_path starts from trainer.resume_from_path", (
        "trainer.resume_mode",
    )),
)
