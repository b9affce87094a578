"""Settings whose defaults come from the machine or the model's family."""

import contextlib
import json
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ml import smallest_job
from verl_omni.pipelines.qwen_image import training as qwen_image
from verl_omni.pipelines.wan import training as wan
from verl_omni.trainer import startup
from verl_omni.trainer.settings import configuration

ROOT = Path(__file__).parents[4]


def fitted(folder: Path, architecture: str, *overrides: str, has_accelerator: bool = False, **parts: Any) -> Any:
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": architecture, **parts}))
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"model_max_length": 77}')
    run_config = smallest_job.load(
        f"actor_rollout_ref.model.path='{folder}'",
        "actor_rollout_ref.rollout.pipeline.max_sequence_length=100",
        *overrides,
    )
    startup.fit_to_machine(run_config, has_accelerator)
    return run_config.actor_rollout_ref


def write_part(folder: Path, name: str, config: dict[str, Any]) -> None:
    """Write the configuration of a part of a model."""
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config))


@pytest.mark.slow
def test_defaults_are_filled_in_without_ray_so_that_workers_can_be_forked() -> None:
    """Ray's name in `sys.modules` refuses forks, and each worker then imports the training stack for itself."""
    program = """
import sys
from verl_omni.trainer import startup
from verl_omni.trainer.settings import configuration
given = ["actor_rollout_ref.model.path=examples/shapes-sd3", "data.train_files=x.jsonl"]
config = configuration.load([*given, "trainer.total_training_steps=1"])
startup.fit_to_machine(config, has_accelerator=False)
print(config.trainer.fork_workers, "ray" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[-2] == "True False"


def test_the_model_family_fills_in_settings_that_are_null(tmp_path: Path) -> None:
    settings = fitted(tmp_path, "QwenImagePipeline", "actor_rollout_ref.rollout.pipeline.guidance_scale=2.5")
    assert settings.model.architecture == "QwenImagePipeline"
    assert settings.model.custom_chat_template == qwen_image.CHAT_TEMPLATE
    assert settings.model.target_modules == list(qwen_image.LORA_TARGETS)
    assert settings.model.fsdp_layer_prefixes == ["transformer_blocks."]
    assert settings.rollout.max_prompt_embed_length == 100
    assert qwen_image.guidance(settings.rollout.pipeline) == 2.5, "one setting of guidance for all families"


def test_all_linear_leaves_out_what_the_engine_cannot_adapt_unless_others_are_left_out(tmp_path: Path) -> None:
    targets, left_out = (f"actor_rollout_ref.model.{name}_modules" for name in ("target", "exclude"))
    excluded = []
    for number, overrides in enumerate(([], [f"{targets}=all-linear"], [f"{targets}=all-linear", f"{left_out}=[ffn]"])):
        (tmp_path / str(number)).mkdir()
        excluded.append(fitted(tmp_path / str(number), "WanPipeline", *overrides).model.exclude_modules)
    assert excluded == [None, wan.NOT_ADAPTED, ["ffn"]]


def test_a_tokenizer_below_a_hub_id_is_in_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--Qwen--Qwen-Image"
    commit = "b" * 40
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    name = "actor_rollout_ref.model.tokenizer_path"
    by_id = ["actor_rollout_ref.model.path=Qwen/Qwen-Image", f"{name}=Qwen/Qwen-Image/tokenizer"]
    settings = fitted(folder, "QwenImagePipeline", *by_id)
    assert (settings.model.path, settings.model.tokenizer_path) == (str(folder), str(folder / "tokenizer"))
    overridden = fitted(folder, "QwenImagePipeline", *by_id, f"{name}=/other/tokenizer")
    assert overridden.model.tokenizer_path == "/other/tokenizer"


def test_the_schedule_of_the_learning_rate_ends_with_the_run_unless_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    twice = fitted(tmp_path / "one", "WanPipeline", "actor_rollout_ref.actor.ppo_epochs=2")
    assert twice.actor.optim.total_training_steps == 2
    overridden = fitted(tmp_path / "two", "WanPipeline", "actor_rollout_ref.actor.optim.total_training_steps=7")
    assert overridden.actor.optim.total_training_steps == 7


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [((), 0), (("lr_warmup_steps_ratio=0.25",), 5), (("lr_warmup_steps=7",), 7), (("lr_warmup_steps=0",), 0)],
)
def test_a_warm_up_is_a_number_of_steps_or_a_part_of_all(
    tmp_path: Path, overrides: tuple[str, ...], steps: int
) -> None:
    schedule = [f"actor_rollout_ref.actor.optim.{override}" for override in overrides]
    settings = fitted(tmp_path, "WanPipeline", "trainer.total_training_steps=20", *schedule)
    assert settings.actor.optim.lr_warmup_steps == steps


def test_settings_that_are_given_stay(tmp_path: Path) -> None:
    settings = fitted(
        tmp_path,
        "StableDiffusion3Pipeline",
        "actor_rollout_ref.model.target_modules=[to_q]",
        "actor_rollout_ref.model.fsdp_layer_prefixes=[x.]",
        "actor_rollout_ref.model.custom_chat_template='{{ messages }}'",
    )
    assert settings.model.target_modules == ["to_q"] and settings.model.fsdp_layer_prefixes == ["x."]
    assert settings.model.custom_chat_template == "{{ messages }}"
    assert settings.rollout.max_prompt_embed_length == 177, "the CLIP tokens come before the T5 tokens"


FSDP = "actor_rollout_ref.actor.fsdp_config"


@pytest.mark.parametrize(("has_accelerator", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_precision_and_activation_checkpointing_depend_on_the_machine(
    tmp_path: Path, has_accelerator: bool, dtype: str
) -> None:
    defaults = fitted(tmp_path, "WanPipeline", has_accelerator=has_accelerator)
    assert defaults.actor.fsdp_config.mixed_precision.param_dtype == defaults.rollout.dtype == dtype
    assert defaults.model.enable_gradient_checkpointing is has_accelerator
    overridden = fitted(
        tmp_path,
        "WanPipeline",
        f"{FSDP}.mixed_precision.param_dtype=fp32",
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        has_accelerator=has_accelerator,
    )
    assert (overridden.actor.fsdp_config.mixed_precision.param_dtype, overridden.rollout.dtype) == ("fp32", "bfloat16")
    assert overridden.model.enable_gradient_checkpointing is False


def test_on_a_cpu_the_engine_gets_settings_that_it_can_start_with(tmp_path: Path) -> None:
    rollout = "actor_rollout_ref.rollout"
    names = ("tensor_model_parallel_size", "data_parallel_size", "rollout_attn_backend", "enable_sleep_mode")
    given = (2, 2, "FLASH_ATTN", True)
    overrides = [f"{rollout}.{name}={value}" for name, value in zip(names, given, strict=True)]
    read = operator.attrgetter(*names)
    assert read(fitted(tmp_path, "WanPipeline", *overrides).rollout) == (1, 1, "TORCH_SDPA", False)
    write_part(tmp_path, "transformer", {"num_attention_heads": 2, "ffn_dim": 8})
    kept = fitted(tmp_path, "WanPipeline", *overrides, "trainer.n_gpus_per_node=4", has_accelerator=True).rollout
    assert read(kept) == given


@pytest.mark.parametrize(
    ("architecture", "size", "overrides", "message"),
    [
        ("WanPipeline", 3, [], r"3 does not divide the 4 ranks"),
        ("StableDiffusion3Pipeline", 2, [], r"not supported for StableDiffusion3Pipeline.*QwenImagePipeline and Wan"),
        ("QwenImagePipeline", 4, [], r"4 does not divide the model's 6 attention heads"),
        ("QwenImagePipeline", 2, ["height=80", "width=80"], r"2 does not divide the 25 tokens of a sample"),
        ("QwenImagePipeline", 2, ["height=80", "width=64"], None),
        ("FluxPipeline", 2, ["height=64", "width=64", "max_sequence_length=77"], r"2 does not divide the 77 rows of"),
        ("FluxPipeline", 2, ["height=64", "width=64", "max_sequence_length=78"], None),
    ],
)
def test_a_sequence_that_ranks_cannot_share_is_refused_before_anything_starts(
    tmp_path: Path, architecture: str, size: int, overrides: list[str], message: str | None
) -> None:
    transformer = {"num_attention_heads": 6, "in_channels": 16, "joint_attention_dim": 8, "patch_size": 2}
    write_part(tmp_path, "transformer", transformer)
    compression = {"temperal_downsample": [False, True, True], "block_out_channels": [8] * 4}
    write_part(tmp_path, "vae", {"z_dim": 4, "latent_channels": 4, **compression})
    settings = [
        "trainer.n_gpus_per_node=4",
        f"{FSDP}.ulysses_sequence_parallel_size={size}",
        *(f"actor_rollout_ref.rollout.pipeline.{override}" for override in overrides),
    ]
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        fitted(tmp_path, architecture, *settings)


@pytest.mark.parametrize(
    ("architecture", "parts", "size", "message"),
    [
        (
            "StableDiffusion3Pipeline",
            [{"num_attention_heads": 38}],
            4,
            "4 does not divide the 38 attention heads of the model's transformer; write 1, 2, 19 or 38",
        ),
        ("QwenImagePipeline", [{"num_attention_heads": 24}], 8, None),
        ("QwenImageEditPlusPipeline", [{"num_attention_heads": 24}], 16, "write 1, 2, 3, 4, 6, 8, 12 or 24"),
        (
            "WanPipeline",
            [{"num_attention_heads": 40, "ffn_dim": 13824}],
            5,
            "5 does not divide the 40 attention heads and 13824 columns of a feed-forward layer of the model's "
            "transformer; write 1, 2, 4 or 8",
        ),
        (
            "WanPipeline",
            [{"num_attention_heads": 4, "ffn_dim": 8}, {"num_attention_heads": 2, "ffn_dim": 8}],
            4,
            "of the model's transformer_2; write 1 or 2",
        ),
        ("WanPipeline", [{"num_attention_heads": 5, "ffn_dim": 8}], 5, "; write 1"),
    ],
)
def test_engines_that_cannot_divide_the_model_are_refused_before_anything_starts(
    tmp_path: Path, architecture: str, parts: list[dict[str, int]], size: int, message: str | None
) -> None:
    for name, config in zip(("transformer", "transformer_2"), parts, strict=False):
        write_part(tmp_path, name, config)
    setting = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    batch = [f"{name}={size}" for name in ("data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size")]
    overrides = [f"{setting}={size}", f"trainer.n_gpus_per_node={size}", *batch]
    assert fitted(tmp_path, architecture, *overrides).rollout.tensor_model_parallel_size == 1, "on a CPU"
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext() as refused:
        fitted(tmp_path, architecture, *overrides, has_accelerator=True)
    assert refused is None or str(refused.value).startswith(f"{setting}: {size} does not divide the ")


def test_a_second_transformer_is_refused_where_it_could_not_be_trained(tmp_path: Path) -> None:
    """Diffusers writes [null, null] for a part that a pipeline may have and this model has not."""
    second = {"transformer_2": ["diffusers", "WanTransformer3DModel"]}
    assert fitted(tmp_path, "WanPipeline", transformer_2=[None, None])
    assert fitted(tmp_path, "WanPipeline", **second, boundary_ratio=0.875)
    for ratio in (None, 1.0):
        with pytest.raises(ValueError, match=rf"needs a boundary_ratio between 0 and 1.*and it is {ratio}"):
            fitted(tmp_path, "WanPipeline", **second, boundary_ratio=ratio)
    with pytest.raises(ValueError, match="which is supported for WanPipeline only, not for QwenImagePipeline"):
        fitted(tmp_path, "QwenImagePipeline", **second, boundary_ratio=0.875)


def test_tokenizers_whose_ids_the_family_does_not_read_are_not_loaded(tmp_path: Path) -> None:
    extra = "actor_rollout_ref.model.extra_tokenizers={t5: {path: x}}"
    assert fitted(tmp_path, "StableDiffusion3Pipeline", extra).model.extra_tokenizers == {}


EXECUTOR = "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.distributed_executor_backend=mp"
STEPS = "actor_rollout_ref.rollout.step_execution=true"


@pytest.mark.parametrize(
    ("architecture", "overrides", "message"),
    [
        ("MyPipeline", [], r"No model family for architecture 'MyPipeline'"),
        ("WanPipeline", [f"{FSDP}.fsdp_size=3", "trainer.n_gpus_per_node=4"], r"fsdp_size: 3 does not divide the 4 ra"),
        (
            "WanPipeline",
            [
                "trainer.n_gpus_per_node=4",
                f"{FSDP}.ulysses_sequence_parallel_size=2",
                f"{FSDP}.use_torch_compile=true",
            ],
            r"use_torch_compile: true is not supported with .*=2: .*; write false",
        ),
        ("QwenImagePipeline", [EXECUTOR], r"write uni, or set actor_rollout_ref\.rollout\.step_execution=true"),
        *(
            (name, [STEPS], rf"step_execution: {name} is generated as whole requests only; write")
            for name in ("WanPipeline", "QwenImageEditPipeline", "QwenImageEditPlusPipeline")
        ),
    ],
)
def test_what_model_and_machine_rule_out_is_refused_before_anything_starts(
    tmp_path: Path, architecture: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(tmp_path, architecture, *overrides)


def test_the_executor_mp_is_allowed_with_step_execution(tmp_path: Path) -> None:
    settings = fitted(tmp_path, "QwenImagePipeline", EXECUTOR, STEPS)
    assert settings.rollout.engine_kwargs.vllm_omni.distributed_executor_backend == "mp"


@pytest.mark.parametrize(("architecture", "rows"), [("StableDiffusion3Pipeline", 177), ("WanPipeline", 100)])
def test_a_family_that_pads_prompts_needs_all_rows_of_embeddings(tmp_path: Path, architecture: str, rows: int) -> None:
    length = "actor_rollout_ref.rollout.max_prompt_embed_length"
    with pytest.raises(
        ValueError, match=rf"{length}: every prompt of {architecture} has {rows} rows with .*=100, more"
    ):
        fitted(tmp_path, architecture, f"{length}={rows - 1}")
    for enough in (rows, rows + 1):
        assert fitted(tmp_path, architecture, f"{length}={enough}").rollout.max_prompt_embed_length == enough
    assert fitted(tmp_path, "QwenImagePipeline", f"{length}=60").rollout.max_prompt_embed_length == 60


def test_workers_on_other_nodes_get_neither_the_address_of_the_drivers_node_nor_the_token() -> None:
    passed = {"HCCL_CONNECT_TIMEOUT": "7200", "HF_HOME": "/models"}
    kept = {"HCCL_IF_IP": "10.0.0.1", "HF_TOKEN": "t", "HOME": "/root"}
    assert startup.passed_variables(passed | kept) == passed


def test_numbers_of_the_data_may_be_null_as_in_scripts_for_verl(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "red"}\n' * 5)
    run_config = configuration.load(
        [
            f"actor_rollout_ref.model.path='{ROOT}/examples/shapes-sd3'",
            f"data.train_files='{tmp_path}/p.jsonl'",
            "trainer.total_epochs=2",
            "data.train_batch_size=2",
            "trainer.seed=7",
            "data.seed=null",
            "data.train_max_samples=null",
            "data.val_max_samples=null",
        ]
    )
    startup.fit_to_machine(run_config, has_accelerator=False)
    assert (run_config.data.seed, run_config.data.train_max_samples, run_config.data.val_max_samples) == (7, -1, -1)
    assert run_config.trainer.total_training_steps == 4
