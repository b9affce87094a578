"""Command lines as recipes of the reference have them, written for these tests from the values that recipes use most.

The published recipes themselves are not in this repository. Each of these sets 60 to 80 settings, as those do.
"""

from dataclasses import dataclass, field

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = f"{ACTOR}.diffusion_loss"
FSDP = f"{ACTOR}.fsdp_config"
PIPELINE = f"{ROLLOUT}.pipeline"
ALGO = f"{ROLLOUT}.algo"
VAL = f"{ROLLOUT}.val_kwargs"
RM = "reward.reward_model"
FUNCTION = "reward.custom_reward_function"
SEVERAL = "reward.reward_functions"
SCORERS = "verl_omni/utils/reward_score"
MANAGERS = "pkg://verl_omni.reward_loop.reward_manager"
MMDIT = "['to_q','to_k','to_v','to_out.0','add_q_proj','add_k_proj','add_v_proj','to_add_out']"
# Settings that the reference has no default of, so its recipes write `+` in front of their names.
ADDED = (f"{ROLLOUT}.engine_kwargs.", f"{PIPELINE}.output_type", f"{VAL}.pipeline.output_type", f"{SEVERAL}.")
QWEN_TEMPLATE = (
    "\"{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}{% endif %}{% endfor %}\""
)

# Settings that at least 30 of the 40 recipes have.
COMMON = {
    "algorithm.adv_estimator": "flow_grpo",
    "data.train_files": "$HOME/data/ocr/train.parquet",
    "data.val_files": "$HOME/data/ocr/test.parquet",
    "data.train_batch_size": "32",
    "data.max_prompt_length": "256",
    f"{MODEL}.lora_rank": "64",
    f"{MODEL}.lora_alpha": "128",
    f"{MODEL}.target_modules": MMDIT,
    f"{ACTOR}.optim.lr": "3e-4",
    f"{ACTOR}.optim.weight_decay": "0.0001",
    f"{ACTOR}.ppo_mini_batch_size": "16",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "16",
    f"{LOSS}.loss_mode": "flow_grpo",
    f"{LOSS}.clip_ratio": "1e-4",
    f"{FSDP}.param_offload": "True",
    f"{FSDP}.optimizer_offload": "True",
    f"{FSDP}.model_dtype": "bfloat16",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "32",
    f"{ROLLOUT}.name": "vllm_omni",
    f"{ROLLOUT}.n": "16",
    f"{ROLLOUT}.agent.num_workers": "4",
    f"{ROLLOUT}.load_format": "safetensors",
    f"{ROLLOUT}.layered_summon": "True",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "32",
    f"{ROLLOUT}.tensor_model_parallel_size": "1",
    f"{PIPELINE}.max_sequence_length": "256",
    f"{PIPELINE}.height": "512",
    f"{PIPELINE}.width": "512",
    f"{PIPELINE}.num_inference_steps": "10",
    f"{ALGO}.noise_level": "1.2",
    f"{ALGO}.sde_type": "sde",
    f"{ALGO}.sde_window_size": "2",
    f"{ALGO}.sde_window_range": "[0,5]",
    f"{VAL}.pipeline.num_inference_steps": "50",
    f"{VAL}.algo.noise_level": "0.0",
    "reward.num_workers": "4",
    "trainer.logger": '["console", "wandb"]',
    "trainer.project_name": "flow_grpo",
    "trainer.log_val_generations": "8",
    "trainer.val_before_train": "False",
    "trainer.n_gpus_per_node": "4",
    "trainer.nnodes": "1",
    "trainer.save_freq": "30",
    "trainer.test_freq": "30",
    "trainer.total_epochs": "15",
    "trainer.total_training_steps": "300",
}
JUDGE = {
    f"{FUNCTION}.path": f"{SCORERS}/genrm_ocr.py",
    f"{FUNCTION}.name": "compute_score_ocr",
    f"{RM}.enable": "True",
    f"{RM}.model_path": "Qwen/Qwen3-VL-8B-Instruct",
    f"{RM}.rollout.name": "vllm",
    f"{RM}.rollout.tensor_model_parallel_size": "4",
}
PICKSCORE = {
    f"{FUNCTION}.path": f"pkg://{SCORERS.replace('/', '.')}.pickscore_reward",
    f"{FUNCTION}.name": "compute_score_pickscore",
    f"{RM}.enable": "False",
}
PLACEHOLDER = {
    f"{FUNCTION}.path": MANAGERS,
    f"{FUNCTION}.name": "_multi_reward_placeholder",
    "reward.reward_manager.name": "MultiVisualRewardManager",
    "reward.reward_manager.module.path": MANAGERS,
    "reward.aggregation": "weighted_sum",
    f"{RM}.enable": "False",
}
SD35 = {f"{MODEL}.path": "stabilityai/stable-diffusion-3.5-medium", f"{PIPELINE}.guidance_scale": "1.0"}
QWEN = {
    f"{MODEL}.path": "Qwen/Qwen-Image",
    f"{PIPELINE}.true_cfg_scale": "4.0",
    f"{MODEL}.custom_chat_template": QWEN_TEMPLATE,
    "data.max_prompt_length": "1024",
    f"{PIPELINE}.max_sequence_length": "1024",
}
WAN = {
    f"{MODEL}.path": "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
    f"{MODEL}.target_modules": "['attn1.to_q','attn1.to_k','attn1.to_v','attn1.to_out.0']",
    f"{MODEL}.fsdp_layer_prefixes": "['blocks.']",
    f"{PIPELINE}.height": "384",
    f"{PIPELINE}.width": "384",
    f"{PIPELINE}.num_frames": "81",
    f"{PIPELINE}.guidance_scale": "5.0",
    f"{VAL}.pipeline.height": "384",
    f"{VAL}.pipeline.width": "384",
    f"{VAL}.pipeline.num_frames": "81",
    f"{VAL}.pipeline.guidance_scale": "5.0",
}
NFT = {
    f"{MODEL}.algorithm": "diffusion_nft",
    f"{MODEL}.model_type": "diffusion_nft_model",
    f"{MODEL}.policy_state_adapters": '["default","old"]',
    f"{LOSS}.loss_mode": "diffusion_nft",
    f"{LOSS}.mix_beta": "0.1",
    f"{LOSS}.ref_kl_coef": "0.0001",
    f"{LOSS}.adv_clip_max": "5.0",
    f"{ROLLOUT}.rollout_adapter": "old",
    f"{ROLLOUT}.calculate_log_probs": "False",
    "algorithm.trainer_type": "direct_preference",
    "algorithm.sample_source": "online",
    "algorithm.adv_mode": "continuous",
    "algorithm.timestep_fraction": "1.0",
    "algorithm.old_policy_decay_schedule": "delayed_linear_to_0_999",
    "algorithm.old_policy_update_interval": "2",
    "trainer.project_name": "diffusion_nft",
}
DPO = {
    f"{MODEL}.algorithm": "dpo",
    f"{MODEL}.model_type": "diffusion_dpo_model",
    f"{LOSS}.loss_mode": "dpo",
    f"{LOSS}.dpo_beta": "100.0",
    f"{ROLLOUT}.calculate_log_probs": "False",
    "algorithm.trainer_type": "direct_preference",
    "algorithm.paired_preference": "true",
    "algorithm.sample_source": "online",
    "trainer.project_name": "online_dpo",
}


def added(name: str) -> str:
    """A setting's name as a recipe writes it."""
    return f"+{name}" if name.startswith(ADDED) else name


@dataclass(frozen=True, slots=True)
class Recipe:
    """A command line.

    Attributes:
        family: whose tiny model can stand for its model (`verl_omni.models.tiny.MAKERS`).
        module: entry point in `verl_omni.trainer`.
        without: settings of `COMMON` that it does not have.
    """

    name: str
    family: str
    settings: dict[str, str]
    module: str = "main_diffusion"
    without: tuple[str, ...] = ()
    given: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        common = {name: value for name, value in COMMON.items() if name not in self.without}
        object.__setattr__(self, "given", {**common, **self.settings, "trainer.experiment_name": self.name})

    @property
    def arguments(self) -> list[str]:
        """What the trainer gets after the shell's expansions, with $HOME as it is."""
        return [f"{added(name)}={value}" for name, value in self.given.items()]

    @property
    def script(self) -> str:
        """A shell script: variables, quotes, continued lines, and the script's own arguments at the end."""
        lines = [
            "#!/bin/bash",
            "set -x",
            "MODEL_PATH=${MODEL_PATH:-" + self.given[f"{MODEL}.path"] + "}",
            f"python3 -m verl_omni.trainer.{self.module} \\",
        ]
        for name, value in self.given.items():
            text = "$MODEL_PATH" if name == f"{MODEL}.path" else value
            quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
            lines.append(f"    {added(name)}={quoted if set(text) & set(chr(34) + ' ([{') else text} \\")
        return "\n".join([*lines, '    "$@"', ""])


_LORA = (f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", f"{MODEL}.target_modules")
_WINDOW = (f"{ALGO}.sde_window_size", f"{ALGO}.sde_window_range")
_RECIPES = (
    Recipe(
        "sd35_ocr_lora",
        "sd3",
        {
            **SD35,
            **JUDGE,
            f"{MODEL}.algorithm": "flow_grpo",
            f"{MODEL}.attn_backend": "native",
            f"{ROLLOUT}.rollout_attn_backend": "TORCH_SDPA",
            f"{ROLLOUT}.max_prompt_embed_length": "333",
            f"{MODEL}.extra_tokenizers": (
                "{clip: {path: tokenizer, max_length: 77}, t5: {path: tokenizer_3, max_length: 256}}"
            ),
            f"{ROLLOUT}.calculate_log_probs": "False",
            f"{MODEL}.lora_dtype": "float32",
            "algorithm.global_std": "False",
            "trainer.resume_mode": "disable",
            "data.truncation": "error",
        },
    ),
    Recipe(
        "qwen_image_ocr_lora",
        "qwen_image",
        {
            **QWEN,
            **JUDGE,
            f"{RM}.rollout.gpu_memory_utilization": "0.4",
            f"{RM}.rollout.enforce_eager": "False",
            f"{RM}.rollout.free_cache_engine": "True",
            f"{MODEL}.tokenizer_path": "$HOME/models/Qwen/Qwen-Image/tokenizer",
            f"{FSDP}.ulysses_sequence_parallel_size": "2",
            f"{ACTOR}.strategy": "fsdp2",
            f"{ROLLOUT}.engine_kwargs.vllm_omni.request_batch_max_wait_ms": "10",
            f"{ROLLOUT}.step_execution": "true",
        },
    ),
    Recipe(
        "qwen_image_ocr_full_64",
        "qwen_image",
        {
            **QWEN,
            **JUDGE,
            "trainer.nnodes": "8",
            "trainer.n_gpus_per_node": "8",
            f"{ACTOR}.optim.lr": "3e-5",
            "data.train_batch_size": "64",
            f"{ACTOR}.ppo_mini_batch_size": "16",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": "4",
            f"{ROLLOUT}.tensor_model_parallel_size": "2",
            f"{ACTOR}.strategy": "fsdp2",
            f"{FSDP}.offload_policy": "True",
            f"{FSDP}.reshard_after_forward": "False",
            f"{FSDP}.fsdp_size": "4",
            f"{MODEL}.fsdp_layer_prefixes": "['transformer_blocks.']",
            f"{MODEL}.enable_gradient_checkpointing": "True",
            f"{ROLLOUT}.agent.num_workers": "8",
            f"{ACTOR}.use_kl_loss": "False",
            f"{FSDP}.wrap_policy.min_num_params": "10000",
            f"{MODEL}.attn_backend": "_flash_3_varlen_hub",
            f"{ROLLOUT}.rollout_attn_backend": "FLASH_ATTN_3_HUB",
        },
        without=_LORA,
    ),
    Recipe(
        "wan22_dance_grpo",
        "wan_5b",
        {
            **WAN,
            "algorithm.adv_estimator": "dance_grpo",
            f"{ALGO}.sde_type": "dance_sde",
            f"{ALGO}.noise_level": "0.7",
            **PICKSCORE,
            f"{ROLLOUT}.dtype": "float32",
            f"{LOSS}.adv_clip_max": "5.0",
            f"{ROLLOUT}.n": "8",
            "trainer.resume_mode": "enable",
            "trainer.rollout_data_dir": "$HOME/rollouts",
            "trainer.rollout_data_save_freq": "10",
            "trainer.video_fps": "24",
        },
    ),
    Recipe(
        "wan22_ocr_lora",
        "wan_5b",
        {
            **WAN,
            **JUDGE,
            f"{ROLLOUT}.n": "8",
            f"{MODEL}.attn_backend": "native",
            f"{ROLLOUT}.rollout_attn_backend": "TORCH_SDPA",
            "trainer.resume_mode": "disable",
            f"{PIPELINE}.output_type": "np",
            f"{VAL}.pipeline.output_type": "np",
        },
    ),
    Recipe(
        "sd35_nft_lora",
        "sd3",
        {
            **SD35,
            **NFT,
            **PICKSCORE,
            f"{ROLLOUT}.seed": "42",
            "data.seed": "42",
            f"{ALGO}.sde_type": "cps",
            f"{ACTOR}.optim.betas": "[0.9,0.999]",
            f"{ACTOR}.optim.clip_grad": "1.0",
            f"{ACTOR}.optim.override_optimizer_config": "{eps: 1e-8}",
        },
        without=(f"{LOSS}.clip_ratio",),
    ),
    Recipe(
        "qwen_image_online_dpo_lora",
        "qwen_image",
        {
            **QWEN,
            **DPO,
            **JUDGE,
            f"{MODEL}.external_lib": "verl_omni.pipelines.qwen_image_dpo",
            f"{RM}.model_path": "Qwen/Qwen2.5-VL-3B-Instruct",
        },
        without=(f"{LOSS}.clip_ratio", "algorithm.adv_estimator"),
    ),
    Recipe(
        "sd35_offline_dpo_lora",
        "sd3",
        {
            **SD35,
            **DPO,
            f"{MODEL}.external_lib": "verl_omni.pipelines.sd3_dpo",
            "algorithm.sample_source": "offline",
            "data.custom_cls.path": "pkg://verl_omni.utils.dataset.offline_dpo_dataset",
            "data.custom_cls.name": "OfflineDPODataset",
            "data.custom_cls.collate_fn": "offline_dpo_collate_fn",
            f"{MODEL}.pipeline.guidance_scale": "4.0",
            "data.train_max_samples": "7200",
            "data.val_max_samples": "32",
            f"{FUNCTION}.path": f"{SCORERS}/jpeg_compressibility.py",
            f"{FUNCTION}.name": "compute_score",
            f"{ROLLOUT}.n": "1",
        },
        without=(f"{LOSS}.clip_ratio", "algorithm.adv_estimator", *_WINDOW),
    ),
    Recipe(
        "sd35_offline_dpo",
        "sd3",
        {
            **SD35,
            **DPO,
            f"{MODEL}.external_lib": "verl_omni.pipelines.sd3_dpo",
            "algorithm.sample_source": "offline",
            f"{FUNCTION}.path": f"{SCORERS}/jpeg_compressibility.py",
            f"{FUNCTION}.name": "compute_score",
            f"{LOSS}.dpo_beta": "2000.0",
            f"{ACTOR}.optim.lr": "3e-5",
            f"{ACTOR}.strategy": "fsdp2",
            "trainer.device": "gpu",
            "trainer.max_actor_ckpt_to_keep": "3",
            f"{MODEL}.attn_backend": "native",
            f"{ROLLOUT}.rollout_attn_backend": "TORCH_SDPA",
            f"{MODEL}.enable_gradient_checkpointing": "True",
            f"{MODEL}.pipeline.guidance_scale": "1.0",
            f"{ACTOR}.optim.clip_grad": "1.0",
            "data.seed": "42",
            f"{ROLLOUT}.seed": "42",
            "data.truncation": "error",
            "trainer.resume_mode": "auto",
        },
        without=(*_LORA, f"{LOSS}.clip_ratio", "algorithm.adv_estimator", f"{ROLLOUT}.n", *_WINDOW),
    ),
    Recipe(
        "qwen_image_nft",
        "qwen_image",
        {
            **QWEN,
            **NFT,
            **PICKSCORE,
            f"{ACTOR}.optim.lr": "3e-5",
            f"{FSDP}.ulysses_sequence_parallel_size": "2",
            f"{MODEL}.fsdp_layer_prefixes": "['transformer_blocks.']",
            "trainer.nnodes": "2",
            "trainer.n_gpus_per_node": "8",
        },
        without=(*_LORA, f"{LOSS}.clip_ratio"),
    ),
    Recipe(
        "sd35_mix_grpo",
        "sd3",
        {
            **SD35,
            **PLACEHOLDER,
            f"{SEVERAL}.ocr.path": f"pkg://{SCORERS.replace('/', '.')}.http_scorer_client",
            f"{SEVERAL}.ocr.name": "compute_score",
            f"{SEVERAL}.ocr.weight": "1.0",
            f"{SEVERAL}.ocr.server_url": "http://localhost:19082",
            f"{ALGO}.sample_strategy": "random",
            f"{ALGO}.sde_window_seed": "42",
            f"{ALGO}.sde_contiguous": "False",
            f"{MODEL}.algorithm": "mix_grpo",
            "trainer.resume_mode": "auto",
        },
    ),
    Recipe(
        "sd35_grpo_guard",
        "sd3",
        {
            **SD35,
            **JUDGE,
            f"{MODEL}.algorithm": "flow_grpo",
            f"{LOSS}.loss_mode": "grpo_guard",
            f"{LOSS}.clip_ratio": "2e-6",
            f"{ACTOR}.use_kl_loss": "True",
            f"{ACTOR}.kl_loss_coef": "0.01",
        },
    ),
    Recipe(
        "sd35_flow_dppo",
        "sd3",
        {
            **SD35,
            **JUDGE,
            f"{MODEL}.algorithm": "flow_grpo",
            f"{LOSS}.loss_mode": "flow_dppo",
            f"{LOSS}.kl_mask_threshold": "1e-5",
            f"{LOSS}.add_kl_coefficient": "True",
        },
        without=(f"{LOSS}.clip_ratio",),
    ),
    Recipe(
        "qwen_image_ocr_lora_async_reward",
        "qwen_image",
        {
            **QWEN,
            **JUDGE,
            f"{RM}.enable_resource_pool": "True",
            f"{RM}.n_gpus_per_node": "1",
            f"{RM}.nnodes": "1",
            f"{RM}.rollout.tensor_model_parallel_size": "1",
            f"{RM}.rollout.gpu_memory_utilization": "0.9",
            f"{RM}.rollout.max_model_len": "8192",
            f"{RM}.rollout.max_num_seqs": "128",
            f"{ROLLOUT}.engine_kwargs.vllm_omni.max_num_seqs": "32",
            "trainer.device": "npu",
            f"{MODEL}.attn_backend": "_native_npu",
            "trainer.n_gpus_per_node": "8",
        },
    ),
    Recipe(
        "sd35_two_rewards_rollout_correction",
        "sd3",
        {
            **SD35,
            **PLACEHOLDER,
            f"{SEVERAL}.jpeg.path": f"{SCORERS}/jpeg_compressibility.py",
            f"{SEVERAL}.jpeg.name": "compute_score",
            f"{SEVERAL}.jpeg.weight": "0.5",
            f"{SEVERAL}.ocr.path": f"{SCORERS}/genrm_ocr.py",
            f"{SEVERAL}.ocr.name": "compute_score_ocr",
            f"{SEVERAL}.ocr.weight": "0.5",
            **{name: value for name, value in JUDGE.items() if name.startswith(RM)},
            "algorithm.rollout_correction.bypass_mode": "True",
            "algorithm.rollout_correction.rollout_is": "sequence",
            "algorithm.rollout_correction.rollout_is_threshold": "2.0",
            "algorithm.rollout_correction.rollout_rs": "seq_mean_k1",
            "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2.0",
            f"{ROLLOUT}.calculate_log_probs": "True",
        },
    ),
    Recipe(
        "sd35_latent_reward",
        "sd3",
        {
            **SD35,
            **PLACEHOLDER,
            f"{PIPELINE}.output_type": "latent",
            f"{VAL}.pipeline.output_type": "both",
            f"{SEVERAL}.drm.path": f"pkg://{SCORERS.replace('/', '.')}.latent_http",
            f"{SEVERAL}.drm.name": "compute_score",
            f"{SEVERAL}.drm.weight": "1.0",
            f"{SEVERAL}.drm.required": "true",
            f"{SEVERAL}.drm.timeout": "120.0",
            f"{SEVERAL}.drm.server_url": "http://127.0.0.1:8000/v1/score",
            f"{SEVERAL}.drm.max_retries": "2",
            f"{SEVERAL}.drm.noise_level": "0.4",
            f"{SEVERAL}.drm.noise_seed": "null",
            f"{SEVERAL}.drm.score_scale": "0.1",
            f"{SEVERAL}.drm.score_bias": "1.0",
        },
    ),
    Recipe(
        "qwen_image_edit_lora",
        "qwen_image_edit",
        {
            **QWEN,
            **JUDGE,
            f"{MODEL}.path": "Qwen/Qwen-Image-Edit-2511",
            "data.max_prompt_length": "8192",
            f"{ROLLOUT}.prompt_length": "8192",
            f"{PIPELINE}.max_sequence_length": "8192",
            "data.trust_remote_code": "True",
            f"{MODEL}.trust_remote_code": "True",
        },
    ),
)
RECIPES = {recipe.name: recipe for recipe in _RECIPES}
