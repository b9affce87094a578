"""PURE: settings that may differ when a run continues from its checkpoint.

They say how long the run is, what it keeps and shows, and where and how fast it computes; such as less memory, after it
ran out. All others may change what is learned: `drl run` refuses them, and the trainer warns of them.
"""

import re

from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.declarations import ACTOR, JUDGE, MODEL, ROLLOUT

# A name, or one of a group with its settings.
MAY_DIFFER = (
    "actor_rollout_ref.nccl_timeout",
    "data.cache_dir",
    "ray_kwargs",
    f"{MODEL}.attn_backend",
    f"{MODEL}.enable_gradient_checkpointing",
    f"{MODEL}.fsdp_layer_prefixes",
    f"{ACTOR}.checkpoint",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    *(
        f"{ACTOR}.fsdp_config.{name}"
        for name in (
            "forward_prefetch",
            "fsdp_size",
            "optimizer_offload",
            "param_offload",
            "reshard_after_forward",
            "ulysses_sequence_parallel_size",
            "use_no_sync_for_gradient_accumulation",
            "use_torch_compile",
        )
    ),
    *(
        f"{ROLLOUT}.{name}"
        for name in (
            "agent.num_workers",
            "checkpoint_engine",
            "data_parallel_size",
            "deadline_seconds",
            "disable_log_stats",
            "enable_sleep_mode",
            "enforce_eager",
            "free_cache_engine",
            "gpu_memory_utilization",
            "load_format",
            "max_concurrent_requests",
            "max_num_seqs",
            "min_replicas",
            "n_gpus_per_node",
            "nnodes",
            "node_resource",
            "offload_text_encoders",
            "pipeline_model_parallel_size",
            "prometheus",
            "prompt_cache_dir",
            "ray_resource",
            "rollout_attn_backend",
            "router_config_path",
            "step_execution",
            "tensor_model_parallel_size",
        )
    ),
    *(
        f"{engine_settings.GROUP}.{name}"
        for name in (
            "diffusion_compile_dynamic",
            "diffusion_compile_granularity",
            "distributed_executor_backend",
            "enable_cache_dit_summary",
            "enable_cpu_offload",
            "enable_diffusion_pipeline_profiler",
            "enable_layerwise_offload",
            "enable_multithread_weight_load",
            "enable_prompt_embed_cache",
            "init_timeout",
            "max_num_seqs",
            "num_weight_load_threads",
            "prompt_embed_cache_size",
            "request_batch_max_wait_ms",
            "vae_parallel_mode",
            "vae_patch_parallel_size",
            "vae_use_slicing",
        )
    ),
    *(
        f"reward.{name}"
        for name in ("batch_size", "deadline_seconds", "early_stopping_patience", "max_failed_share", "num_workers")
    ),
    *(
        f"{JUDGE}.{name}"
        for name in (
            "deadline_seconds",
            "enable_resource_pool",
            "n_gpus_per_node",
            "nnodes",
            "node_resource",
            "ray_resource",
            "rollout.cudagraph_capture_sizes",
            "rollout.data_parallel_size",
            "rollout.disable_log_stats",
            "rollout.enforce_eager",
            "rollout.expert_parallel_size",
            "rollout.free_cache_engine",
            "rollout.gpu_memory_utilization",
            "rollout.max_num_batched_tokens",
            "rollout.max_num_seqs",
            "rollout.pipeline_model_parallel_size",
            "rollout.tensor_model_parallel_size",
        )
    ),
)
# The trainer's own settings that may not differ.
LEARNED_BY_TRAINER = ("trainer.seed", "trainer.use_v1", "trainer.v1")
_SCORER_POOL = re.compile(r"reward\.reward_functions\.\w+\.pool(\..*)?")


def may_differ(name: str) -> bool:
    """Whether a setting may differ between a run and the checkpoint that it continues from."""
    if name.startswith("trainer."):
        return not _is_one_of(name, LEARNED_BY_TRAINER)
    return _is_one_of(name, MAY_DIFFER) or _SCORER_POOL.fullmatch(name) is not None


def _is_one_of(name: str, settings: tuple[str, ...]) -> bool:
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)
