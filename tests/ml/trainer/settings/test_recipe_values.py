"""Every example value of every setting that a published recipe uses loads, unless it is out of scope.

The values are from docs/figures/reference-settings.tsv, up to three of a setting; long ones that the list
abbreviated were completed. `<path>` stands for a path.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ml import smallest_job
from tools import settings_page
from verl_omni.trainer import main_diffusion
from verl_omni.trainer.settings import configuration, cpu_values, reward_settings

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = f"{ACTOR}.diffusion_loss"
CORRECTION = "algorithm.rollout_correction"
RM = "reward.reward_model"
JOB = [*smallest_job.REQUIRED, f"{MODEL}.lora_rank=64"]
# What the value of a setting needs besides it, by the beginning of the setting's name. The longest one counts.
NFT, DPO = (f"{LOSS}.loss_mode={name}" for name in ("diffusion_nft", "dpo"))
SD3, QWEN = (f"{MODEL}.architecture={name}" for name in ("StableDiffusion3Pipeline", "QwenImagePipeline"))
COMPANIONS = {
    f"{MODEL}.policy_state_adapters": [NFT],
    f"{ROLLOUT}.rollout_adapter": [NFT],
    "algorithm.sample_source": [DPO],
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": ["trainer.n_gpus_per_node=2"],
    f"{ROLLOUT}.algo.sde_window_range": [f"{ROLLOUT}.pipeline.num_inference_steps=15"],
    f"{CORRECTION}.rollout_is_threshold": [f"{CORRECTION}.rollout_is=sequence"],
    f"{CORRECTION}.rollout_rs": [f"{CORRECTION}.rollout_rs_threshold=0.5_2.0"],
    f"{CORRECTION}.rollout_rs_threshold": [f"{CORRECTION}.rollout_rs=seq_mean_k1"],
    "trainer.log_val_generations": ["trainer.logger=[tensorboard]"],
    f"{RM}.enable": [f"{RM}.model_path=/a/judge", f"{RM}.rollout.tensor_model_parallel_size=1"],
    f"{RM}.enable_resource_pool": [],
}
# Accepted only with these values of the other setting that is named.
WITH_ALGORITHM = {"diffusion_nft": NFT, "dpo": DPO}
# Values that are refused, by setting: they need features that this project does not support.
OUT_OF_SCOPE = {
    **{
        f"{ACTOR}.veomni_config.{name}": value
        for name, value in {
            "optimizer_offload": "True",
            "param_offload": "True",
            "strategy": "veomni",
            "ulysses_parallel_size": "1",
        }.items()
    },
    "actor_rollout_ref.ref.veomni_config.strategy": "veomni",
    f"{ACTOR}.strategy": "veomni",
    "diffusion/model_engine": "veomni_diffusion",
    f"{MODEL}.config_path": "<path>",  # of VeOmni
    "distillation.enabled": "True",
    f"{ROLLOUT}.pipeline.aspect_ratio": "16:9",  # of MiniMax-H3
}
# Other families.
NOT_REGISTERED = {
    (f"{MODEL}.architecture", "OmniBagelForConditionalGeneration"),
    (f"{MODEL}.architecture", "MiniMaxH3Pipeline"),
    (f"{ROLLOUT}.agent.default_agent_loop", "ltx2_diffusion_single_turn_agent"),
    (f"{ROLLOUT}.agent.default_agent_loop", "minimax_h3_diffusion_single_turn_agent"),
}


def values() -> Iterator[tuple[str, str]]:
    for row in settings_page.reference_settings():
        for value in (row["examples"] or "").split(" | "):
            if value:
                yield row["setting"], value


def overrides(name: str, value: str) -> list[str]:
    matching = [begin for begin in COMPANIONS if name.startswith(begin)]
    companions = COMPANIONS[max(matching, key=len)] if matching else []
    text = value.replace("<path>", "/a/path")
    if name == f"{MODEL}.algorithm" and value in WITH_ALGORITHM:
        companions = [WITH_ALGORITHM[value]]
    return [*JOB, *companions, f"{name}={text}"]


def refusal(name: str, value: str) -> str | None:
    try:
        configuration.load(overrides(name, value))
    except configuration.SettingsError as error:
        return str(error)
    return None


def test_the_list_has_values_of_every_setting_that_a_recipe_uses() -> None:
    used = {row["setting"] for row in settings_page.reference_settings() if int(row["recipes"]) > 0}
    assert used == {name for name, _ in values()}


@pytest.mark.slow  # a configuration is composed for each
def test_every_value_loads_unless_it_is_out_of_scope() -> None:
    refused = {(name, value): message for name, value in values() if (message := refusal(name, value)) is not None}
    expected = {*OUT_OF_SCOPE.items(), *NOT_REGISTERED}
    unexpected = {key: message for key, message in refused.items() if key not in expected}
    assert unexpected == {}
    assert set(refused) == expected, "these values load now"
    assert all(message.startswith(f"{name}: ") for (name, _), message in refused.items())


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([f"{ROLLOUT}.calculate_log_probs=False"], f"{ROLLOUT}.calculate_log_probs"),
        ([NFT, f"{ROLLOUT}.calculate_log_probs=True"], f"{ROLLOUT}.calculate_log_probs"),
        ([NFT, f"{ACTOR}.use_kl_loss=True"], f"{ACTOR}.use_kl_loss"),
        ([DPO, f"{ACTOR}.use_kl_loss=true"], f"{ACTOR}.use_kl_loss"),
        ([f"{MODEL}.lora_rank=0", f"{ACTOR}.fsdp_config.model_dtype=bfloat16"], f"{ACTOR}.fsdp_config.model_dtype"),
        ([f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.rollout_is=sequence"], f"{CORRECTION}.rollout_is"),
        ([f"{MODEL}.extra_tokenizers={{clip: {{path: tokenizer}}}}"], f"{MODEL}.extra_tokenizers"),
        ([f"{ACTOR}.fsdp_config.offload_policy=True"], f"{ACTOR}.fsdp_config.offload_policy"),
        ([f"{ACTOR}.fsdp_config.wrap_policy.min_num_params=10000"], f"{ACTOR}.fsdp_config.wrap_policy.min_num_params"),
        ([f"{ROLLOUT}.algo.sde_contiguous=False"], f"{ROLLOUT}.algo.sde_contiguous"),
        (
            [
                "reward.reward_manager.name=MultiVisualRewardManager",
                "reward.custom_reward_function.path=pkg://verl_omni.reward_loop.reward_manager.multi",
                "reward.reward_functions.jpeg.name=jpeg",
            ],
            "reward.custom_reward_function",
        ),
        (
            [NFT, f"{MODEL}.pipeline.guidance_scale=4.0", f"{ROLLOUT}.pipeline.guidance_scale=1.0"],
            f"{MODEL}.pipeline.guidance_scale",
        ),
        ([DPO, "algorithm.sample_source=offline", f"{ROLLOUT}.n=1"], f"{ROLLOUT}.n"),
        ([SD3, f"{ROLLOUT}.pipeline.true_cfg_scale=4.0"], f"{ROLLOUT}.pipeline.true_cfg_scale"),
        (
            [SD3, f"{ROLLOUT}.pipeline.guidance_scale=4.0", f"++{ROLLOUT}.val_kwargs.pipeline.true_cfg_scale=1.0"],
            f"{ROLLOUT}.val_kwargs.pipeline.true_cfg_scale",
        ),
        (
            [f"{MODEL}.architecture=WanPipeline", f"{ROLLOUT}.pipeline.true_cfg_scale=5"],
            f"{ROLLOUT}.pipeline.true_cfg_scale",
        ),
        (
            [QWEN, f"{ROLLOUT}.pipeline.true_cfg_scale=4.0", f"{ROLLOUT}.pipeline.guidance_scale=1.0"],
            f"{ROLLOUT}.pipeline.guidance_scale",
        ),
    ],
)
def test_a_value_that_changes_nothing_is_named_with_the_reason(overrides: list[str], named: str) -> None:
    overrides = [*JOB, *overrides]
    unused = configuration.without_effect(overrides, configuration.load(overrides))
    assert list(unused) == [named] and unused[named]


@pytest.mark.parametrize(
    "override",
    [
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        f"{ROLLOUT}.rollout_attn_backend=FLASH_ATTN",
        f"{ROLLOUT}.enable_sleep_mode=true",
        f"{ROLLOUT}.enforce_eager=false",
        f"{ROLLOUT}.gpu_memory_utilization=0.8",
        f"{ROLLOUT}.data_parallel_size=2",
        f"{ROLLOUT}.offload_text_encoders=true",
        f"{MODEL}.attn_backend=_native_npu",
        f"{MODEL}.attn_backend=_flash_3_varlen_hub",
        f"{ACTOR}.fsdp_config.param_offload=true",
        f"{ACTOR}.fsdp_config.optimizer_offload=true",
    ],
)
def test_a_value_that_changes_nothing_on_a_cpu_is_named_there(override: str) -> None:
    name, value = override.split("=")
    (named,) = configuration.without_effect([override], has_accelerator=False).items()
    assert named[0] == name and named[1].startswith("on a CPU ")
    assert configuration.without_effect([override], has_accelerator=True) == {}
    default = cpu_values.REPLACED.get(name) or cpu_values.IGNORED[name]
    plain = str(default[0]).lower() if isinstance(default[0], bool) else default[0]
    assert configuration.without_effect([f"{name}={plain}"], has_accelerator=False) == {} and str(plain) != value


@pytest.mark.parametrize("kernel", ["_native_npu", "_flash_3_varlen_hub"])
def test_a_kernel_of_accelerators_is_replaced_on_a_cpu(kernel: str) -> None:
    """Otherwise a recipe as it is published, on a CPU, ends when its model is loaded."""
    config = configuration.load([*JOB, f"{MODEL}.attn_backend={kernel}"])
    assert config.actor_rollout_ref.model.attn_backend == kernel
    cpu_values.fill_in(config)
    assert config.actor_rollout_ref.model.attn_backend == "native"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            [
                NFT,
                f"{ROLLOUT}.algo.sde_type=cps",
                f"{ROLLOUT}.algo.sde_window_size=2",
                f"{ROLLOUT}.algo.sde_window_range=[0,20]",
                f"{ROLLOUT}.algo.sde_contiguous=False",
            ],
            "no step has noise",
        ),
        ([DPO, f"{ROLLOUT}.algo.sample_strategy=random", f"{ROLLOUT}.algo.sde_window_seed=42"], "no step has noise"),
        (
            [
                f"{MODEL}.lora_rank=0",
                f"{MODEL}.lora_alpha=128",
                f"{MODEL}.lora_dtype=float32",
                f"{MODEL}.target_modules=[to_q]",
            ],
            f"{MODEL}.lora_rank is 0: all weights are trained",
        ),
        ([f"{MODEL}.lora_init_weights=orthogonal", f"{MODEL}.lora_adapter_path=sft"], "the adapter has the values"),
        ([f"{ACTOR}.kl_loss_coef=0.04", f"{ACTOR}.diffusion_loss.exact_kl=true"], f"without {ACTOR}.use_kl_loss=true"),
        ([DPO, "algorithm.global_std=False"], "diffusion_dpo orders samples without advantages"),
    ],
)
def test_settings_of_what_a_run_does_not_have_are_named(overrides: list[str], reason: str) -> None:
    """A recipe that forgets `lora_rank`, or has another algorithm's sampler, trains something else than it says."""
    overrides = [*JOB, *overrides]
    unused = configuration.without_effect(overrides, configuration.load(overrides))
    named = {override.partition("=")[0] for override in overrides[len(JOB) :]}
    read = {f"{ACTOR}.diffusion_loss.loss_mode", f"{MODEL}.lora_rank", f"{MODEL}.lora_adapter_path"}
    assert set(unused) == named - read
    assert all(text.startswith(reason) for text in unused.values())


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{ROLLOUT}.algo.sde_type=cps"],
        [NFT, f"{ROLLOUT}.algo.sde_type=cps", f"{ROLLOUT}.algo.noise_level=0.7"],
        [NFT, f"{ROLLOUT}.algo.sde_type=cps", f"++{ROLLOUT}.val_kwargs.algo.noise_level=0.7"],
        [f"{ACTOR}.kl_loss_coef=0.04", f"{ACTOR}.use_kl_loss=true"],
        [f"{ACTOR}.kl_loss_coef=0.0"],
        [f"{MODEL}.lora_alpha=128"],
        [NFT, "algorithm.global_std=False"],
        [f"{MODEL}.lora_rank=0", f"{MODEL}.target_modules=null"],
        [SD3, f"{ROLLOUT}.pipeline.guidance_scale=4.0"],
        [QWEN, f"{ROLLOUT}.pipeline.guidance_scale=4.0"],
        [SD3, f"{ROLLOUT}.pipeline.guidance_scale=4.0", f"{ROLLOUT}.pipeline.true_cfg_scale=4.0"],
        [QWEN, f"{ROLLOUT}.pipeline.true_cfg_scale=4.0"],
        [f"{ROLLOUT}.pipeline.true_cfg_scale=4.0"],
        [QWEN, f"{ROLLOUT}.pipeline.true_cfg_scale=4.0", f"++{ROLLOUT}.val_kwargs.pipeline.guidance_scale=4.0"],
    ],
    ids=str,
)
def test_settings_of_what_a_run_has_are_not_named(overrides: list[str]) -> None:
    overrides = [*JOB, *overrides]
    assert configuration.without_effect(overrides, configuration.load(overrides)) == {}


def test_a_run_on_a_cpu_names_them_once_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unused_settings: list[dict[str, str]] = []
    monkeypatch.setattr(main_diffusion, "run_training", lambda *given: unused_settings.append(dict(given[-1])) or 0)
    monkeypatch.setattr(main_diffusion.startup, "prepare_environment", lambda has_accelerator: None)
    monkeypatch.setattr(main_diffusion.startup, "accelerator_present", lambda: False)
    (tmp_path / "x.jsonl").write_text('{"prompt": "a"}\n' * 8)
    overrides = [
        f"{MODEL}.path=examples/shapes-sd3",
        f"data.train_files={tmp_path / 'x.jsonl'}",
        "reward.scorer=jpeg",
        "trainer.total_training_steps=1",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
    ]
    monkeypatch.chdir(Path(__file__).parents[4])
    assert main_diffusion.main(overrides) == 0, capsys.readouterr().err
    assert unused_settings == [{f"{ROLLOUT}.tensor_model_parallel_size": "on a CPU an engine is one process"}]


@pytest.mark.parametrize(("algorithm", "value"), [([], "False"), ([NFT], "True"), ([DPO], "true")])
def test_whether_the_engine_records_log_probabilities_depends_on_the_algorithm_only(
    algorithm: list[str], value: str
) -> None:
    overrides = [*JOB, *algorithm]
    assert configuration.load([*overrides, f"{ROLLOUT}.calculate_log_probs={value}"]) == configuration.load(overrides)


@pytest.mark.parametrize("path", ["verl_omni/utils/reward_score/{}.py", "pkg://verl_omni.utils.reward_score.{}"])
def test_a_scorer_of_the_reference_is_the_built_in_one_of_its_name(path: str) -> None:
    several = "reward.reward_functions"
    reward = "reward.custom_reward_function"
    reference = configuration.load(
        [*JOB, f"{reward}.path={path.format('genrm_ocr')}", f"{reward}.name=compute_score_ocr"]
    )
    assert (reference.reward.scorer, reference.reward.custom_reward_function.path) == ("genrm_ocr", None)
    url = f"+{reward}.reward_kwargs.server_url=http://localhost:1"
    with_settings = configuration.load([*JOB, f"{reward}.path={path.format('http_scorer_client')}", url]).reward
    assert (with_settings.scorer, with_settings.custom_reward_function.reward_kwargs) == ("http", {})
    assert with_settings.scorer_kwargs == {"url": "http://localhost:1", "protocol": "pickle"}
    parts = configuration.load(
        [
            *JOB,
            f"{several}.a.path={path.format('http_scorer_client')}",
            f"{several}.a.name=compute_score",
            f"{several}.a.server_url=http://localhost:1",
            f"{several}.b.path={path.format('pickscore_reward')}",
        ]
    ).reward.reward_functions
    assert (parts.a.name, parts.a.path, parts.a.url) == ("http", None, "http://localhost:1")
    assert parts.a.protocol == "pickle"
    assert (parts.b.name, parts.b.path) == ("pickscore", None)
    named = configuration.load([*JOB, f"{reward}.path={path.format('mine')}"]).reward
    assert (named.scorer, named.custom_reward_function.path) == (None, path.format("mine"))


FUNCTION = "reward.custom_reward_function"


@pytest.mark.parametrize(
    ("module", "function", "scorer"),
    [
        ("genrm_ocr", "compute_score_ocr", "genrm_ocr"),
        ("clap", "compute_score", "clap"),
        ("genrm_ocr", "mine", None),
        ("genrm_ocr_strict", "compute_score_ocr", None),
        ("clap_on_video", "compute_score", None),
        ("http_of_mine", "compute_score", None),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_a_file_of_the_users_runs_and_a_replaced_one_is_named(
    tmp_path: Path, module: str, function: str, scorer: str | None, several: bool
) -> None:
    file = tmp_path / "verl_omni" / "utils" / "reward_score" / f"{module}.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"def {function}(data_source, solution_image, ground_truth, extra_info):\n    return 0.25\n")
    group = "reward.reward_functions.own" if several else FUNCTION
    overrides = [*JOB, f"{group}.path={file}", f"{group}.name={function}"]
    config = configuration.load(overrides)
    part = config.reward.reward_functions.own if several else config.reward.custom_reward_function
    assert part.path == (None if scorer else str(file))
    assert (part.name if several else config.reward.scorer) == (scorer or (function if several else None))
    named = configuration.without_effect(overrides, config)
    assert named == (
        {}
        if scorer is None
        else {
            f"{group}.path": f"the built-in scorer {scorer} runs instead of {file}; to run a file, give it another name"
        }
    )
    assert not [problem for problem in reward_settings.find_problems(config.reward) if "unknown" in problem]


def test_several_scorers_in_one_override_are_named_where_they_are_replaced() -> None:
    parts = "{a: {path: pkg://verl_omni.utils.reward_score.jpeg_compressibility}, b: {name: jpeg}}"
    overrides = [*JOB, f"reward.reward_functions={parts}"]
    (named,) = configuration.without_effect(overrides, configuration.load(overrides))
    assert named == "reward.reward_functions.a.path"


@pytest.mark.parametrize(
    ("module", "settings", "expected"),
    [
        (
            "http_scorer_client",
            {"server_url": "http://a", "max_retries": 4, "retry_backoff": 0.5},
            {"url": "http://a", "attempts": 5, "retry_backoff": 0.5, "protocol": "pickle"},
        ),
        (
            "latent_http_scorer_client",
            {"server_url": "http://a", "max_retries": 4, "retry_backoff": 0.5},
            {"server_url": "http://a", "max_retries": 4, "retry_backoff": 0.5},
        ),
        ("hpsv3_reward", {"reward_scale": 0.1}, {"score_scale": 0.1}),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_the_options_of_the_published_scorers_are_those_of_the_built_in_ones(
    module: str, settings: dict[str, Any], expected: dict[str, Any], several: bool
) -> None:
    group, inside = ("reward.reward_functions.a", "") if several else (FUNCTION, "reward_kwargs.")
    options = [f"+{group}.{inside}{name}={value}" for name, value in settings.items()]
    path = f"{group}.path=pkg://verl_omni.utils.reward_score.{module}"
    reward = configuration.load([*JOB, path, *options]).reward
    scorer_settings = reward.reward_functions.a if several else reward.scorer_kwargs
    assert {name: value for name, value in scorer_settings.items() if name not in ("path", "name")} == expected
    assert not [problem for problem in reward_settings.find_problems(reward) if "setting" in problem]


def test_the_data_set_of_pairs_of_the_reference_is_that_of_this_project() -> None:
    custom = "data.custom_cls"
    overrides = [*JOB, DPO, "algorithm.sample_source=offline"]
    theirs = [f"{custom}.path=pkg://verl_omni.utils.dataset.offline_dpo_dataset", f"{custom}.name=OfflineDPODataset"]
    assert configuration.load(
        [*overrides, *theirs, f"{custom}.collate_fn=offline_dpo_collate_fn"]
    ) == configuration.load(overrides)
