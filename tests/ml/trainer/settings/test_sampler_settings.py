"""What a model cannot sample is refused before the start: sizes, lengths of prompts, schedulers, shifts."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ml import smallest_job
from verl_omni.models.tiny import MAKERS
from verl_omni.settings_schema.declarations import out_of_range
from verl_omni.trainer import startup
from verl_omni.trainer.settings import configuration

ROLLOUT = "actor_rollout_ref.rollout"
STEPS = {
    "sd3": 16,
    "qwen_image": 16,
    "qwen_image_edit": 16,
    "qwen_image_edit_plus": 16,
    "wan": 16,
    "wan_5b": 32,
    "wan_a14b": 16,
}
SD3 = Path(__file__).parents[4] / "examples" / "shapes-sd3"
DDIM = {"scheduler": ["diffusers", "DDIMScheduler"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) / "model" for name in STEPS}
    for name, folder in folders.items():
        MAKERS[name](folder)
    return folders


def load(folder: Path, model: Path, *overrides: str) -> Any:
    (folder / "rows.jsonl").write_text('{"prompt": "red"}\n' * 32)
    overrides = tuple(f"{ROLLOUT}.{override}" for override in overrides)
    config = smallest_job.load(
        f"data.train_files='{folder / 'rows.jsonl'}'", f"actor_rollout_ref.model.path='{model}'", *overrides
    )
    startup.fit_to_machine(config, has_accelerator=False)
    return config


@pytest.mark.parametrize("name", STEPS)
def test_sides_are_multiples_of_a_token_for_training_and_evaluations(
    models: dict[str, Path], tmp_path: Path, name: str
) -> None:
    step = STEPS[name]
    for group in ("pipeline", "val_kwargs.pipeline"):
        for side in ("height", "width"):
            problem = rf"{ROLLOUT}.{group}: {side} must be a multiple of {step}, not {step * 3 // 2}; write {step}"
            with pytest.raises(ValueError, match=problem):
                load(tmp_path, models[name], f"{group}.{side}={step * 3 // 2}")
    load(tmp_path, models[name], f"pipeline.height={step}", f"val_kwargs.pipeline.width={3 * step}")


def test_sides_have_positions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pipeline: width must be at most \d+, not 8192: the model has no more posi"):
        load(tmp_path, SD3, "pipeline.width=8192")


@pytest.mark.parametrize(("name", "most"), [("sd3", 512), ("qwen_image", 1024)])
def test_prompts_have_at_most_the_tokens_that_the_engine_takes(
    models: dict[str, Path], tmp_path: Path, name: str, most: int
) -> None:
    for group in ("pipeline", "val_kwargs.pipeline"):
        with pytest.raises(ValueError, match=rf"{group}.max_sequence_length: \w+ reads at most {most} tokens"):
            load(tmp_path, models[name], f"{group}.max_sequence_length={most + 1}")
    load(tmp_path, models[name], f"pipeline.max_sequence_length={most}")


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("wan", {"use_flow_sigmas": None}, "use_flow_sigmas of UniPCMultistepScheduler must be true .*, not null"),
        ("wan", {"prediction_type": "epsilon"}, 'prediction_type of .* must be "flow_prediction" .*, not "epsilon"'),
        ("wan", {"final_sigmas_type": "sigma_min"}, 'must be "zero"'),
        ("wan", {"use_dynamic_shifting": True}, "use_dynamic_shifting of .* must be false"),
        ("sd3", {"stochastic_sampling": True}, "stochastic_sampling of .* must be false"),
        ("qwen_image", {"invert_sigmas": True}, "invert_sigmas of .* must be false"),
        ("qwen_image_edit", {"invert_sigmas": True}, "invert_sigmas of .* must be false"),
        ("sd3", {"use_dynamic_shifting": True}, None),
        ("sd3", DDIM, "DDIMScheduler is not supported .*; write FlowMatchEulerDiscreteScheduler$"),
        ("wan", DDIM, "not supported .*; write UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler$"),
    ],
)
def test_a_scheduler_that_the_sampler_cannot_follow_is_refused(
    models: dict[str, Path], tmp_path: Path, name: str, changed: dict[str, Any], message: str | None
) -> None:
    file = models[name] / ("model_index.json" if changed is DDIM else "scheduler/scheduler_config.json")
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | changed))
    try:
        with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
            load(tmp_path, models[name])
    finally:
        file.write_text(before)


def test_two_shifts_that_differ_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    engine = "engine_kwargs.vllm_omni.flow_shift=3"
    with pytest.raises(ValueError, match=r"video_flow_shift: 5.0 differs from .*flow_shift, which is 3.0; write one"):
        load(tmp_path, models["wan"], engine, "pipeline.video_flow_shift=5.0")
    load(tmp_path, models["wan"], engine, "pipeline.video_flow_shift=3.0")


@pytest.mark.parametrize("setting", ["pipeline.video_flow_shift", "engine_kwargs.vllm_omni.flow_shift"])
@pytest.mark.parametrize(("name", "unused"), [("wan", False), ("sd3", True)])
def test_a_shift_of_videos_is_named_where_samples_are_images(
    models: dict[str, Path], tmp_path: Path, name: str, setting: str, unused: bool
) -> None:
    overrides = [f"{ROLLOUT}.{setting}=5.0"]
    config = load(tmp_path, models[name], f"{setting}=5.0")
    assert (overrides[0].partition("=")[0] in configuration.without_effect(overrides, config)) == unused


def test_the_rank_of_an_adapter_is_at_most_the_engines() -> None:
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    rank = "actor_rollout_ref.model.lora_rank"
    largest = max(get_args(MaxLoRARanks))
    assert (out_of_range(rank, largest), bool(out_of_range(rank, largest + 1))) == (None, True)
