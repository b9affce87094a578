"""Settings of the engine in `rollout.engine_kwargs.vllm_omni`: names, types, and what other settings rule out."""

import ast
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.ml import smallest_job
from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.engine_settings import GROUP, SETTINGS
from verl_omni.settings_schema.reference_settings import rules
from verl_omni.trainer.memory_estimate.advice import changes
from verl_omni.trainer.settings import configuration

LORA = "actor_rollout_ref.model.lora_rank=4"
AWAKE = "actor_rollout_ref.rollout.enable_sleep_mode=false"


def load(*overrides: str) -> Any:
    return smallest_job.load(LORA, *overrides).actor_rollout_ref.rollout


def engine(*overrides: str) -> dict[str, Any]:
    return dict(load(*(f"{GROUP}.{override}" for override in overrides)).engine_kwargs.vllm_omni)


def refusal(*overrides: str) -> str:
    return smallest_job.refusal(LORA, *overrides)


# Fields of the stage that vLLM-Omni fills in itself, or that only its own servers, its language models and other model
# families than this trainer's read.
OF_OTHERS = """
    VSA_sparsity cache_strategy cfg_kv_collect_func diffusers_pipeline_cls diffusion_kv_cache_skip_layer_indices
    diffusion_kv_cache_skip_step_indices diffusion_kv_max_rows_per_request diffusion_kv_mode diffusion_model_runner_cls
    diffusion_offload_config disable_autocast dist_timeout enable_broadcast_weight_load enable_prefix_caching
    enable_session_state_manager enable_stage_verification gpu_memory_utilization host kv_cache_memory_bytes
    kv_transfer_config log_level mask_sp_padding mask_strategy_file_path master_port max_cpu_loras max_model_len
    max_multimodal_image_inputs max_num_batched_tokens moba_config_path model_loaded model_paths moe_backend nccl_port
    omni_kv_config output_type override_transformer_cls_name pin_cpu_memory port prompt_file_path
    quantization_config_is_auto_detected revision scheduler_port skip_time_steps stage_id stage_input_payload_keys
    stage_output_payload_keys supports_mixed_reference_inputs supports_multimodal_inputs tf_model_config vae_fast_path
    video_output_transport
"""


def fields_of_the_stage() -> set[str]:
    """The fields of vLLM-Omni's configuration of a diffusion stage, which refuses every other argument."""
    source = Path(str(distribution("vllm-omni").locate_file("vllm_omni"))) / "diffusion" / "data.py"
    return {
        field.target.id
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name in ("OmniDiffusionConfig", "DiffusionParallelConfig")
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def test_everything_that_a_stage_of_vllm_omni_takes_is_handed_on_or_refused_with_a_reason() -> None:
    taken = fields_of_the_stage()
    assert len(taken) > 100
    known = {name.removeprefix(f"{GROUP}.") for name in rules()} | SETTINGS.keys()
    assert taken - known == set(OF_OTHERS.split())


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("vae_use_tiling=true", {"vae_use_tiling": True}),
        ("vae-use-tiling=1", {"vae_use_tiling": True}),
        ("flow-shift=3", {"flow_shift": 3.0}),
        ("num_weight_load_threads=2.0", {"num_weight_load_threads": 2}),
        ("diffusion_kv_cache_skip_steps=4", {"diffusion_kv_cache_skip_steps": "4"}),
        ("cache_config={rel_l1_thresh: 0.5}", {"cache_config": {"rel_l1_thresh": 0.5}}),
        ("cache_config='{\"rel_l1_thresh\": 0.5}'", {"cache_config": {"rel_l1_thresh": 0.5}}),
        ("cache-config.rel_l1_thresh=0.5", {"cache_config": {"rel_l1_thresh": 0.5}}),
        ("quantization_config=fp8", {"quantization_config": "fp8"}),
        ("flow_shift=null", {"flow_shift": None}),
    ],
)
def test_values_get_their_types_and_names_their_spelling(setting: str, found: dict[str, Any]) -> None:
    settings = engine(setting)
    assert {name: settings[name] for name in found} == found
    assert {name: type(settings[name]) for name in found if name != "cache_config"} == {
        name: type(value) for name, value in found.items() if name != "cache_config"
    }
    assert settings.keys() == {"distributed_executor_backend", "request_batch_max_wait_ms", *found}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("vae_use_tilling=true", "vae_use_tilling: unknown setting; did you mean vae_use_tiling?"),
        ("kv_cache_memory_bytes=1", "kv_cache_memory_bytes: unknown setting"),
        ("vae_use_tiling=maybe", "vae_use_tiling: the text 'maybe' is not supported; write true or false"),
        ("flow_shift=true", "flow_shift: true is not supported; write a number"),
        ("flow_shift=", "flow_shift: has no value, such as from an empty variable of a script; write a number"),
        ("max_num_seqs=2.5", "max_num_seqs: 2.5 is not supported; write a whole number"),
        ("max_num_seqs=inf", "max_num_seqs: inf is not supported; write a whole number"),
        ("cache_config=fast", "cache_config: the text 'fast' is not supported; write a group of settings"),
        (
            "cache_backend=step_cache",
            "cache_backend: step_cache is not supported; write none or cache_dit or tea_cache",
        ),
        ("ulysses-degree=2", "ulysses_degree: 2 is not supported; write 1 or null: vLLM-Omni splits sequences"),
        ("enable_sleep_mode=true", "enable_sleep_mode: true is not supported; write null: write actor_rollout_ref."),
        ("no_such.flow_shift=1", "no_such: unknown setting"),
    ],
)
def test_what_the_engine_does_not_take_is_refused(setting: str, message: str) -> None:
    assert refusal(f"{GROUP}.{setting}").startswith(f"{GROUP}.{message}")


def test_a_group_is_checked_like_its_settings() -> None:
    message = refusal(f"{GROUP}={{no_such: 1, ulysses_degree: 2, vae-use-tiling: maybe, mm_processor_cache_gb: 0}}")
    assert [line.partition(":")[0].rpartition(".")[2] for line in message.splitlines()] == [
        "no_such",
        "ulysses_degree",
        "vae_use_tiling",
    ]
    group = f"{GROUP}={{mm-processor-cache-gb: 0, ring_degree: 1, flow_shift: 2}}"
    assert dict(load(group).engine_kwargs.vllm_omni) == {**load().engine_kwargs.vllm_omni, "flow_shift": 2.0}
    assert list(configuration.without_effect([group])) == [f"{GROUP}.mm_processor_cache_gb"]


def test_two_spellings_with_two_values_are_refused() -> None:
    assert engine_settings.read({"flow-shift": 2, "flow_shift": 2.0}) == ({"flow_shift": 2.0}, [])
    (problem,) = engine_settings.read({"flow-shift": 2, "flow_shift": 3})[1]
    assert problem == f"{GROUP}.flow_shift: has two values, 2.0 and 3.0; write one"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("custom_pipeline", "mine.Pipeline"),
        ("custom-pipeline", "mine.Pipeline"),
        ("deploy_config", "/d.yaml"),
        ("mm_processor_cache_gb", "0"),
        ("stage_configs_path", "/s.yaml"),
        ("stage-init-timeout", "9"),
    ],
)
def test_what_recipes_set_in_vain_loads_and_is_named(name: str, value: str) -> None:
    overrides = [f"+{GROUP}.{name}={value}"]
    assert load(*overrides) == load()
    assert list(configuration.without_effect(overrides)) == [f"{GROUP}.{name.replace('-', '_')}"]


def test_the_batch_size_of_the_engine_is_that_of_the_rollout() -> None:
    overrides = [f"{GROUP}.max-num-seqs=7", "actor_rollout_ref.rollout.max_num_seqs=9"]
    for order in (overrides, overrides[::-1]):
        assert load(*order).max_num_seqs == 7
    assert load(f"{GROUP}.max_num_seqs=null").max_num_seqs == load().max_num_seqs == 64


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [([f"{GROUP}.max_num_seqs=32"], f"{GROUP}.max_num_seqs"), ([], "actor_rollout_ref.rollout.max_num_seqs")],
)
def test_advice_changes_the_batch_size_where_it_is_set(overrides: list[str], setting: str) -> None:
    from omegaconf import OmegaConf

    config = smallest_job.load(LORA, *overrides, f"{GROUP}.distributed_executor_backend=uni")
    (change,) = (change for change in changes(config) if change.setting.endswith("max_num_seqs"))
    OmegaConf.update(config, change.setting, change.value)
    assert (change.setting, config.actor_rollout_ref.rollout.max_num_seqs) == (setting, 16)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{GROUP}.enable_cpu_offload=true"], "enable_cpu_offload: an engine's sleep does not free offloaded weights"),
        (
            [AWAKE, *(f"{GROUP}.enable_{name}_offload=true" for name in ("cpu", "layerwise"))],
            "enable_cpu_offload: is not read with enable_layerwise_offload; write one",
        ),
        (
            [AWAKE, f"{GROUP}.enable_layerwise_offload=true", "actor_rollout_ref.model.lora_rank=0"],
            "enable_layerwise_offload: updates of all weights cannot write weights",
        ),
        (
            [f"{GROUP}.quantization=fp8", "actor_rollout_ref.model.lora_rank=0"],
            "quantization: updates of all weights cannot write weights",
        ),
        (
            [f"{GROUP}.vae_patch_parallel_size=2"],
            "vae_patch_parallel_size: 2 is more than tensor_model_parallel_size, which is 1",
        ),
    ],
)
def test_what_other_settings_rule_out_is_refused(overrides: list[str], message: str) -> None:
    assert refusal(*overrides).startswith(f"{GROUP}.{message}")


def test_what_goes_with_other_settings_is_accepted() -> None:
    load(AWAKE, f"{GROUP}.enable_layerwise_offload=true", f"{GROUP}.quantization=fp8")
    load("actor_rollout_ref.rollout.nnodes=1", f"{GROUP}.enable_cpu_offload=true")
    load("actor_rollout_ref.rollout.tensor_model_parallel_size=2", f"{GROUP}.vae_patch_parallel_size=2")


def idle(*overrides: str, architecture: str | None = None) -> dict[str, str]:
    config = smallest_job.load(LORA, *overrides)
    config.actor_rollout_ref.model.architecture = architecture
    named = configuration.without_effect(overrides, config)
    return {name.removeprefix(f"{GROUP}."): reason for name, reason in named.items()}


def test_what_does_nothing_next_to_other_settings_is_named() -> None:
    overrides = [
        f"{GROUP}.{name}" for name in ("cache_config={}", "vae_parallel_mode=tile", "prompt_embed_cache_size=8")
    ]
    assert idle(*overrides) == {
        "cache_config": "cache_backend is not set",
        "vae_parallel_mode": "vae_patch_parallel_size is not set",
        "prompt_embed_cache_size": "enable_prompt_embed_cache is not set",
    }
    assert idle(*overrides, f"{GROUP}.cache_backend=none", f"{GROUP}.enable_prompt_embed_cache=true").keys() == {
        "cache_config",
        "vae_parallel_mode",
    }
    assert idle(f"{GROUP}.cache_config={{}}", f"{GROUP}.cache_backend=cache_dit") == {}
    compiled = f"{GROUP}.diffusion-compile-dynamic=true"
    assert list(idle(compiled)) == ["diffusion_compile_dynamic"]
    assert idle(compiled, "actor_rollout_ref.rollout.enforce_eager=false") == {}


def test_what_torchs_attention_does_not_read_is_named() -> None:
    flash = f"{GROUP}.fa_deterministic=true"
    assert idle(flash) == {"fa_deterministic": "the attention backend TORCH_SDPA does not read it"}
    assert idle(flash, "actor_rollout_ref.rollout.rollout_attn_backend=FLASH_ATTN") == {}
    assert idle(flash, f"{GROUP}.diffusion_attention_backend=FLASH_ATTN") == {}
    assert idle(flash, f"{GROUP}.diffusion_attention_config.per_role.self=FLASH_ATTN") == {}


def test_what_does_nothing_for_a_family_is_named() -> None:
    boundary = f"{GROUP}.boundary_ratio=0.9"
    assert idle(boundary, architecture="QwenImagePipeline") == {
        "boundary_ratio": "QwenImagePipeline has one transformer"
    }
    assert idle(boundary, architecture="WanPipeline") == idle(boundary) == {}
    (dropped,) = idle(f"{GROUP}.enable_prompt_embed_cache=true", architecture="WanPipeline").items()
    assert dropped[0] == "enable_prompt_embed_cache" and "does not hand it to WanPipeline" in dropped[1]


def test_what_does_nothing_on_a_cpu_is_named() -> None:
    overrides = [f"{GROUP}.enable-cpu-offload=true", f"{GROUP}.fa_deterministic=false"]
    assert configuration.without_effect(overrides, has_accelerator=False) == {
        f"{GROUP}.enable_cpu_offload": "on a CPU weights are in host memory"
    }
    assert configuration.without_effect(overrides) == {}


@pytest.mark.parametrize("architecture", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"])
def test_embeddings_that_depend_on_images_are_not_cached_by_their_text(architecture: str) -> None:
    from verl_omni.pipelines.registry import check_engine_settings

    with pytest.raises(ValueError, match=r"enable_prompt_embed_cache: embeddings of QwenImageEdit\w+ depend on the"):
        check_engine_settings(architecture, {"enable_prompt_embed_cache": True})
    check_engine_settings(architecture, {"enable_prompt_embed_cache": False})
    check_engine_settings("QwenImagePipeline", {"enable_prompt_embed_cache": True})


def test_a_program_that_starts_a_server_has_the_same_checks(caplog: pytest.LogCaptureFixture) -> None:
    from verl_omni.workers.config import DiffusionRolloutConfig

    config = DiffusionRolloutConfig(
        engine_kwargs={
            "vllm_omni": {"flow-shift": 3, "vae_use_tiling": None, "custom-pipeline": "a.B"},
            "vllm": {"a": 1},
        }
    )
    assert config.engine_kwargs == {"vllm_omni": {"flow_shift": 3.0}, "vllm": {"a": 1}}
    assert f"{GROUP}.custom_pipeline has no effect: a replica has one stage" in caplog.text
    for name, value in (("no_such", 1), ("ulysses-degree", 2), ("vae_use_tiling", "maybe")):
        with pytest.raises(ValueError, match=name.replace("-", "_")):
            DiffusionRolloutConfig(engine_kwargs={"vllm_omni": {name: value}})
