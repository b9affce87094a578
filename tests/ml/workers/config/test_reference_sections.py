"""The typed settings are made from the reference's sections: a name works, has no effect, or is refused.

The sections are from docs/figures/reference-settings.tsv: all defaults, and every value that a recipe sets.
"""

import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from tools import settings_page
from verl_omni.agent_loop.sampling import row_params
from verl_omni.settings_schema.reference_settings import WithoutEffect, find_rule
from verl_omni.workers import config
from verl_omni.workers.config.diffusion.reference_fields import check_copies

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"
TOP = "actor_rollout_ref"
SECTIONS = {
    "model": config.DiffusionModelConfig,
    "actor": config.DiffusionActorConfig,
    "actor.diffusion_loss": config.DiffusionLossConfig,
    "actor.optim": config.DiffusionOptimizerConfig,
    "actor.fsdp_config": config.DiffusionFSDPConfig,
    "actor.checkpoint": config.DiffusionCheckpointConfig,
    "rollout": config.DiffusionRolloutConfig,
    "rollout.pipeline": config.DiffusionPipelineConfig,
    "rollout.algo": config.DiffusionRolloutAlgoConfig,
    "rollout.val_kwargs": config.DiffusionSamplingConfig,
}
# Values of settings that name a checkpoint's folder.
GIVEN = {"model": {"path": str(MODEL)}}
# verl's types by section; the sections name them with `_target_`.
VERLS = {
    "agent": "AgentLoopConfig",
    "checkpoint_engine": "CheckpointEngineConfig",
    "prometheus": "PrometheusConfig",
    "multi_turn": "MultiTurnConfig",
}
# Files that a recipe brings along; `Qwen/Qwen-Image` is a repository, which the trainer looks up in the local cache.
FILES = {"model.path", "model.tokenizer_path"}


def parsed(text: str) -> Any:
    if text == "None":
        return None
    if text == "16:9":
        return text  # YAML reads it as a number of base 60
    value = yaml.safe_load(text.replace("True", "true").replace("False", "false"))
    try:
        return float(value) if isinstance(value, str) else value  # YAML reads 1e-5 as text
    except ValueError:
        return value


def table() -> Iterator[tuple[str, dict[str, str]]]:
    for row in settings_page.reference_settings():
        if row["setting"].startswith(f"{TOP}."):
            yield row["setting"].removeprefix(f"{TOP}."), row


def default_section(section: str) -> dict[str, Any]:
    """The reference's defaults of a section; those that it derives from others are left out."""
    group: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(GIVEN.get(section, {})))  # type: ignore[assignment]
    for name, row in table():
        inner = name.removeprefix(f"{section}.")
        if inner == name or row["default"] in ("", "-", "???") or "$" in row["default"]:
            continue
        if name not in FILES:
            put(group, inner, parsed(row["default"]))
    return group


def put(found: dict[str, Any], name: str, value: Any) -> None:
    *groups, last = name.split(".")
    for group in groups:
        found = found.setdefault(group, {})
        if group in VERLS:
            found["_target_"] = f"verl.workers.config.{VERLS[group]}"
    found[last] = value


def make(section: str, settings: dict[str, Any]) -> Any:
    """As verl makes it from a section with `_target_`."""
    kind = SECTIONS[section]
    return omega_conf_to_dataclass(
        OmegaConf.create({"_target_": f"{kind.__module__}.{kind.__name__}", **settings}, flags={"allow_objects": True})
    )


@pytest.mark.parametrize("section", SECTIONS)
def test_the_reference_defaults_of_a_section_make_its_type(section: str) -> None:
    defaults = default_section(section)
    typed = make(section, defaults)
    assert isinstance(typed, SECTIONS[section])
    plain = SECTIONS[section](**{name: value for name, value in defaults.items() if name not in VERLS})
    assert type(plain) is type(typed)


# `diffusion_loss` has the names of several types; the defaults above have all of them.
@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "actor.diffusion_loss"])
def test_every_name_of_a_section_is_a_field_of_its_type(section: str) -> None:
    known = {field.name for field in fields(SECTIONS[section])}
    there = {
        name.removeprefix(f"{section}.").partition(".")[0] for name, _ in table() if name.startswith(f"{section}.")
    }
    assert there - known == set()


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("model", {"use_shm": True}, "model.use_shm: True is not supported; write False: files are read"),
        ("model", {"algo": {"noise": 1}}, "model.algo.noise: unknown setting"),
        ("actor", {"rollout_correction": {"rollout_is": "token"}}, "write algorithm.rollout_correction.rollout_is"),
        (
            "actor",
            {"rollout_correction": {"rollout_is_threshold": 3.0}},
            "rollout_is_threshold: 3.0 is not read here; write algorithm.rollout_correction.rollout_is_threshold",
        ),
        (
            "actor",
            {"rollout_correction": {"level": 1}},
            "rollout_correction.level: unknown setting; the group has copies of algorithm.rollout_correction",
        ),
        ("actor", {"grad_clip": 0.5, "optim": {"clip_grad": 2.0}}, "actor.optim.clip_grad: 2.0 differs from"),
        ("actor.fsdp_config", {"dtype": "float16"}, "fsdp_config.dtype: 'float16' is not supported"),
        (
            "actor.fsdp_config",
            {"dtype": "float32", "mixed_precision": {"param_dtype": "bfloat16"}},
            "fsdp_config.dtype: torch.float32 differs from fsdp_config.mixed_precision.param_dtype",
        ),
        ("actor.diffusion_loss", {"mix_beta": 0.7}, "mix_beta is a setting of diffusion_nft, not of flow_grpo"),
        ("actor.diffusion_loss", {"mix": 0.7}, "flow_grpo has no setting 'mix'; its settings are"),
        ("actor.diffusion_loss", {"add_kl_coefficient": False}, "the divergence of Flow-DPPO"),
        ("rollout.val_kwargs", {"pipeline": {"heigth": 8}}, "heigth"),
        ("actor", {"strategy": "veomni"}, "Unknown strategy: 'veomni'"),
        ("actor", {"veomni_config": {"param_offload": True}}, "the engine VeOmni is not supported"),
        ("model", {"config_path": "/a/path"}, "a model's settings are read from its folder"),
        ("rollout.pipeline", {"aspect_ratio": "16:9"}, "no supported model family reads it"),
    ],
)
def test_what_asks_for_something_else_is_refused(section: str, settings: dict[str, Any], message: str) -> None:
    base = GIVEN.get(section, {}) | ({"diffusion_loss": {}} if section == "actor" else {})
    with pytest.raises((ValueError, TypeError)) as caught:
        SECTIONS[section](**base, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "settings", "name"),
    [
        ("model", {"model_type": "diffusion_nft_model"}, "model.model_type"),
        ("actor", {"data_loader_seed": 1}, "actor.data_loader_seed"),
        ("actor", {"distill_loss_coef": 2.0}, "actor.distill_loss_coef"),
        ("rollout", {"max_new_tokens": 3}, "rollout.max_new_tokens"),
    ],
)
def test_what_has_no_effect_is_named_once_with_its_reason(
    section: str, settings: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    base = GIVEN.get(section, {}) | ({"diffusion_loss": {}} if section == "actor" else {})
    with caplog.at_level(logging.WARNING):
        SECTIONS[section](**base, **settings)
    rule = find_rule(f"{TOP}.{name}")
    assert isinstance(rule, WithoutEffect)
    warnings = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert warnings == [f"{TOP}.{name} has no effect: {rule.reason}"]


def test_other_names_set_what_they_mean() -> None:
    actor = config.DiffusionActorConfig(
        diffusion_loss={"loss_mode": "dpo"}, optim={"clip_grad": 0.25}, fsdp_config={"dtype": "bf16"}
    )
    assert actor.grad_clip == 0.25
    assert actor.fsdp_config.mixed_precision.param_dtype == "bfloat16"
    assert actor.diffusion_loss.loss_mode == "diffusion_dpo"
    assert config.DiffusionModelConfig(path=str(MODEL), algorithm="dpo").algorithm == "diffusion_dpo"


@pytest.mark.parametrize(
    ("model", "actor", "message"),
    [
        ({"pipeline": {"guidance_scale": 4.0}}, {}, "model.pipeline.guidance_scale: 4.0 differs from"),
        ({"algo": {"sde_window_range": [0, 4]}}, {}, "model.algo.sde_window_range: [0, 4] differs from"),
        ({}, {"rollout_n": 4}, "actor.rollout_n: 4 differs from actor_rollout_ref.rollout.n, which is 8"),
        ({"pipeline": {"guidance_scale": 1.0}, "algo": {"sde_window_range": [0, 5]}}, {"rollout_n": 8}, None),
        ({"algorithm": "diffusion_nft", "pipeline": {"guidance_scale": 4.0}}, {}, None),
    ],
)
def test_copies_must_agree_with_the_rollout(model: dict[str, Any], actor: dict[str, Any], message: str | None) -> None:
    copies = (
        config.DiffusionModelConfig(path=str(MODEL), **model),
        config.DiffusionActorConfig(diffusion_loss={}, **actor),
        config.DiffusionRolloutConfig(n=8, pipeline={"guidance_scale": 1.0}, algo={"sde_window_range": [0, 5]}),
    )
    if message is None:
        check_copies(*copies)
        return
    with pytest.raises(ValueError, match="differs") as caught:
        check_copies(*copies)
    assert message in str(caught.value)


@pytest.mark.parametrize("validate", [False, True])
def test_no_request_carries_what_no_model_family_reads(validate: bool) -> None:
    rollout = config.DiffusionRolloutConfig(val_kwargs={"pipeline": {"frame_rate": 24.0}})
    (params,) = row_params(replace(rollout, seed=0), {"validate": validate, "global_steps": 1}, 1, {})
    assert {"height", "num_inference_steps"} < set(params)
    assert not {"aspect_ratio", "frame_rate"} & set(params)


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        (config.DiffusionModelConfig, {"path": str(MODEL), "lora_rank": 8, "external_lib": ["json"]}),
        (config.DiffusionActorConfig, {"optim": {"lr": 0.5}, "diffusion_loss": {"loss_mode": "flow_grpo"}}),
        # The reference's section has the settings of every loss.
        (config.DiffusionActorConfig, {"diffusion_loss": {"loss_mode": "diffusion_nft", "mix_beta": 0.1}}),
        (config.FSDPDiffusionActorConfig, {"use_kl_loss": False, "diffusion_loss": {"clip_ratio": 1e-5}}),
        (config.DiffusionRolloutConfig, {"n": 4, "pipeline": {"height": 64}, "algo": {"sde_window_range": [0, 5]}}),
        (config.DiffusionPipelineConfig, {"height": 64, "output_type": "latent"}),
        (config.DiffusionRolloutAlgoConfig, {"noise_level": 0.5}),
        (config.DiffusionSamplingConfig, {"seed": 7}),
    ],
)
def test_a_section_becomes_the_class_that_a_program_names(kind: Any, section: dict[str, Any]) -> None:
    """As with verl's classes: `omega_conf_to_dataclass(config.actor_rollout_ref.rollout, DiffusionRolloutConfig)`."""
    converted = omega_conf_to_dataclass(OmegaConf.create(section), kind)
    assert type(converted) is kind
    for name, value in section.items():
        values = value if isinstance(value, dict) else {None: value}
        for inner, wanted in values.items():
            read = converted[name] if inner is None else converted[name][inner]
            assert read == wanted


@pytest.mark.parametrize(
    "make",
    [
        lambda name: config.DiffusionLossConfig(loss_mode=name),
        lambda name: config.DiffusionModelConfig(path=str(MODEL), algorithm=name),
    ],
)
def test_a_name_that_needs_other_settings_says_which(make: Any) -> None:
    with pytest.raises(ValueError, match=r"mix_grpo is flow_grpo with other settings: write flow_grpo, and .*seed=0"):
        make("mix_grpo")
