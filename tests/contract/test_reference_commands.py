"""Settings that users of the reference wrote in public, in its documentation and issues, each in a command line.

A source `#N` is issue or pull request N of verl-omni, and `page` a page of its documentation.
"""

from __future__ import annotations

import pytest

from contract.recipes import ALGO, FSDP, LOSS, MODEL, PIPELINE, RECIPES, RM, ROLLOUT, VAL
from omni_operator.recipes import convert

AGENT_LOOP = "diffusion_single_turn_agent"
CORRECTION = "algorithm.rollout_correction"
V1 = "trainer.v1"
SEPARATE = (
    "trainer.use_v1=true",
    f"{V1}.trainer_mode=separate_async",
    f"{ROLLOUT}.nnodes=1",
    f"{ROLLOUT}.n_gpus_per_node=4",
    f"{RM}.enable_resource_pool=True",
    f"{RM}.nnodes=1",
    f"{RM}.n_gpus_per_node=4",
)
# Source, recipe, settings of it. They have an effect, or are named with the reason.
ACCEPTED = (
    (
        "#331",
        "qwen_image_ocr_lora",
        (
            f"{ROLLOUT}.nnodes=1",
            f"{ROLLOUT}.n_gpus_per_node=8",
            f"{ROLLOUT}.agent.num_workers=16",
            f"{ROLLOUT}.checkpoint_engine.backend=nccl",
            "actor_rollout_ref.hybrid_engine=False",
        ),
    ),
    (
        "#315",
        "sd35_ocr_lora",
        (
            *SEPARATE,
            f"{ROLLOUT}.checkpoint_engine.backend=nccl",
            f"{V1}.separate_async.parameter_sync_step=2",
            "transfer_queue.enable=True",
            "actor_rollout_ref.hybrid_engine=True",
        ),
    ),
    (
        "#575",
        "sd35_ocr_lora",
        (
            *SEPARATE,
            f"{ROLLOUT}.checkpoint_engine.backend=hccl",
            f"{V1}.separate_async.sync_compatible=false",
            f"{V1}.separate_async.hybrid_rollout.enable_switch=false",
            f"{V1}.separate_async.hybrid_rollout.switch_threshold_ratio=0.4",
            f"{ROLLOUT}.disaggregation.enabled=false",
        ),
    ),
    ("#536", "qwen_image_online_dpo_lora", ("trainer.use_v1=true", f"{V1}.trainer_mode=sync")),
    (
        "#591",
        "sd35_nft_lora",
        ("trainer.use_v1=true", f"{V1}.trainer_mode=sync", "algorithm.old_policy_decay_schedule=copy"),
    ),
    ("#310", "sd35_nft_lora", (f"{ROLLOUT}.step_execution=True",)),
    ("#310", "qwen_image_online_dpo_lora", (f"{ROLLOUT}.step_execution=True",)),
    (
        "#163",
        "sd35_nft_lora",
        (
            f"{MODEL}.attn_backend='_native_npu'",
            "trainer.n_gpus_per_node=16",
            f"{ROLLOUT}.tensor_model_parallel_size=2",
        ),
    ),
    (
        "#118",
        "qwen_image_ocr_lora",
        (f"{ROLLOUT}.data_parallel_size=1", f"{FSDP}.fsdp_size=8", "trainer.nnodes=2", "trainer.n_gpus_per_node=8"),
    ),
    ("#204", "sd35_ocr_lora", (f"{ROLLOUT}.rollout_attn_backend=TORCH_SDPA",)),
    ("#55", "qwen_image_ocr_full_64", (f"{LOSS}.clip_ratio=1e-5", f"{ROLLOUT}.load_format=dummy")),
    ("#98", "wan22_dance_grpo", (f"{ALGO}.sde_type=dance_sde", f"{PIPELINE}.num_frames=81")),
    ("#60", "sd35_ocr_lora", ("data.seed=42", f"{ROLLOUT}.seed=42", f"{VAL}.seed=42")),
    (
        "#383",
        "sd35_nft_lora",
        (
            "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
            f"{ROLLOUT}.free_cache_engine=true",
            "data.shuffle=false",
            "trainer.val_before_train=True",
            "trainer.test_freq=5",
        ),
    ),
    (
        "#487",
        "qwen_image_ocr_lora",
        (
            f"++{ROLLOUT}.engine_kwargs.vllm_omni.max_num_seqs=32",
            f"{ROLLOUT}.max_num_seqs=32",
            f"++{ROLLOUT}.engine_kwargs.vllm_omni.request_batch_max_wait_ms=500",
        ),
    ),
    (
        "page algo/rollout_correction",
        "sd35_ocr_lora",
        (
            f"{CORRECTION}.bypass_mode=True",
            f"{CORRECTION}.rollout_is=sequence",
            f"{CORRECTION}.rollout_rs=seq_mean_k1",
            f'{CORRECTION}.rollout_rs_threshold="0.5_2.0"',
        ),
    ),
    (
        "page perf/profiler",
        "qwen_image_ocr_lora",
        (
            "global_profiler.tool=nsys",
            "global_profiler.steps=[1,2,5]",
            "global_profiler.profile_continuous_steps=True",
            "actor_rollout_ref.actor.profiler.enable=True",
            "actor_rollout_ref.actor.profiler.ranks=[0]",
            "actor_rollout_ref.actor.profiler.tool_config.torch.contents=[cuda,cpu]",
            "+global_profiler.global_tool_config.nsys.controller_nsight_options.capture-range=cudaProfilerApi",
        ),
    ),
    ("#256", "qwen_image_ocr_lora", (f"{RM}.rollout.profiler.enable=true",)),
)
# Source, recipe, settings, what is said of the last one.
REFUSED = (
    ("#575", "sd35_ocr_lora", (*SEPARATE, f"{V1}.separate_async.hybrid_rollout.enable_switch=true"), "write false: "),
    ("#249", "sd35_ocr_lora", ("trainer.use_v1=true", f"{V1}.trainer_mode=colocate_async"), "write sync"),
    ("#380", "sd35_ocr_lora", ("trainer.use_v1=true", f"{V1}.trainer_mode=omni_separate_async"), "write sync"),
    ("#546", "sd35_ocr_lora", ("algorithm.trainer_type=distribution_matching",), "there is no distillation"),
    ("#113", "sd35_ocr_lora", (f"+{ROLLOUT}.engine_kwargs.vllm_omni.output_mode=ar",), "write diffusion or null: "),
    ("#203", "sd35_ocr_lora", (f"{FSDP}.full_determinism=true",), "write false: "),
    ("#104", "sd35_ocr_lora", ("diffusion/model_engine=veomni",), "models are trained with FSDP2"),
    ("#113", "sd35_ocr_lora", (f"{MODEL}.architecture=OmniBagelForConditionalGeneration",), "WanPipeline"),
    ("#383", "sd35_nft_lora", (f"{MODEL}.architecture=MiniMaxH3Pipeline",), "WanPipeline"),
    ("#414", "sd35_ocr_lora", (f"{ROLLOUT}.agent.default_agent_loop=ltx2_diffusion_single_turn_agent",), AGENT_LOOP),
)


def command_line(recipe: str, settings: tuple[str, ...]) -> list[str]:
    """The recipe's arguments, with settings instead of those that it has."""
    names = {_name(each) for each in settings}
    return [*(each for each in RECIPES[recipe].arguments if _name(each) not in names), *settings]


def _name(argument: str) -> str:
    return argument.lstrip("+").partition("=")[0]


@pytest.mark.parametrize(("source", "recipe", "given"), ACCEPTED)
def test_settings_of_users_load_in_the_trainer_and_become_a_job(
    source: str, recipe: str, given: tuple[str, ...]
) -> None:
    from omegaconf import OmegaConf

    from verl_omni.settings_schema.reference_settings import Rejected, find_rule
    from verl_omni.trainer.settings import configuration

    arguments = command_line(recipe, given)
    config = configuration.load(arguments)
    named = configuration.without_effect(arguments, config)
    for name in map(_name, given):
        is_used = OmegaConf.select(config, name, default="absent") != "absent"
        asks_for_nothing = isinstance(find_rule(name), Rejected)  # otherwise it is refused
        assert is_used or asks_for_nothing or named[name], f"{source}: {name} is neither used nor named"
    assert convert(arguments).refused == ()


@pytest.mark.parametrize(("source", "recipe", "given", "said"), REFUSED)
def test_what_is_out_of_scope_is_refused_with_what_to_write(
    source: str, recipe: str, given: tuple[str, ...], said: str
) -> None:
    from verl_omni.trainer.settings import configuration

    arguments = command_line(recipe, given)
    with pytest.raises(configuration.SettingsError) as caught:
        configuration.load(arguments)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{_name(given[-1])}: ") and said in line, source
    ((assignment, reason),) = convert(arguments).refused
    assert assignment == given[-1].lstrip("+") and said in reason, source
