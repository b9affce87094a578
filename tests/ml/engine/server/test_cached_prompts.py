"""Prompt embeddings on disk, on vLLM-Omni's engine in this process, for every family."""

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.ml.engine.local_engine import LocalEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LENGTH = 32
NEGATIVE = "dark sky"
PROMPTS = ("a red circle", "two blue squares on the left")
# Text encoders of each family.
ENCODERS = {
    "sd3": ("CLIPTextModelWithProjection", "CLIPTextModelWithProjection", "T5EncoderModel"),
    "flux": ("CLIPTextModel", "T5EncoderModel"),
    "flux2_klein": ("Qwen3ForCausalLM",),
    "qwen_image": ("Qwen2_5_VLForConditionalGeneration",),
    "wan": ("UMT5EncoderModel",),
}
# SD3's and Qwen-Image's engines also run one step at a time.
CASES = [*((family, False) for family in ENCODERS), ("sd3", True), ("qwen_image", True)]


@pytest.fixture
def passes() -> Iterator[list[str]]:
    """Names of the classes of modules, for each of their passes."""
    names = list[str]()

    def record(module: nn.Module, given: Any, output: Any) -> None:
        names.append(type(module).__name__)

    hook = nn.modules.module.register_module_forward_hook(record)
    yield names
    hook.remove()


def drawn(model: Path, **settings: Any) -> list[Any]:
    """Samples of the prompts, one after the other, on a new engine."""
    return asyncio.run(_drawn(model, settings))


async def _drawn(model: Path, given: dict[str, Any]) -> list[Any]:
    params = {
        "height": 64,
        "width": 64,
        "num_inference_steps": 2,
        "guidance_scale": 3.0,
        "true_cfg_scale": 3.0,
        "max_sequence_length": LENGTH,
        "seed": 7,
        "num_frames": 5 if model.name == "wan" else 1,
        "logprobs": True,
        "noise_level": 0.7,
        "sde_window_size": 1,
    }
    engine = LocalEngine(model, **given)
    try:
        return [await engine.sample(prompt, prompt, params, negative=NEGATIVE) for prompt in PROMPTS]
    finally:
        engine.shutdown()


def equal(one: Any, other: Any) -> bool:
    names = one.extra_fields.keys()
    return (
        names == other.extra_fields.keys()
        and torch.equal(one.diffusion_output, other.diffusion_output)
        and all(torch.equal(one.extra_fields[name], other.extra_fields[name]) for name in names if "embeds" in name)
    )


@pytest.mark.parametrize(("name", "stepwise"), CASES)
def test_samples_are_the_same_without_a_cache_with_a_cold_one_and_with_a_warm_one(
    name: str, stepwise: bool, tmp_path: Path, passes: list[str]
) -> None:
    from verl_omni.models.tiny import MAKERS

    MAKERS[name](tmp_path / name)
    cached = {"prompt_cache_dir": str(tmp_path / "cache"), "step_execution": stepwise}
    encoders = ENCODERS[name]
    without = drawn(tmp_path / name, step_execution=stepwise)
    assert set(encoders) <= set(passes) and not (tmp_path / "cache").exists()
    passes.clear()
    cold = drawn(tmp_path / name, **cached)
    files = sorted((tmp_path / "cache").rglob("*.safetensors"))
    assert len(files) >= len(PROMPTS)
    assert {encoder: passes.count(encoder) for encoder in encoders} == {
        encoder: encoders.count(encoder) * len(files) for encoder in encoders
    }, "each prompt is encoded once"
    assert all(map(equal, cold, without)) and any("embeds" in field for field in cold[0].extra_fields)
    assert not equal(cold[0], cold[1])
    passes.clear()
    warm = drawn(tmp_path / name, **cached)
    assert all(map(equal, warm, cold)) and passes and not set(encoders) & set(passes)
    assert sorted((tmp_path / "cache").rglob("*.safetensors")) == files


def test_a_pipeline_of_a_user_that_encodes_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.pipelines.description import Family
    from verl_omni.pipelines.registry import FAMILIES
    from verl_omni.workers.config import DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode

    mine = Family("types:SimpleNamespace", "mine:Training")
    monkeypatch.setattr(FAMILIES, "_entries", {**FAMILIES, "MyPipeline": mine})
    rollout = DiffusionRolloutConfig(prompt_cache_dir="/cache")
    with pytest.raises(ValueError, match="prompt_cache_dir: prompt embeddings of MyPipeline depend on more than"):
        DiffusionMode().engine_args(argparse.Namespace(), rollout, SimpleNamespace(architecture="MyPipeline"))


def test_families_say_whether_their_embeddings_can_be_kept() -> None:
    from verl_omni.pipelines.registry import FAMILIES
    from verl_omni.utils.registry import load

    assert all(
        description.caches_prompts is load(description.pipeline).caches_prompts for description in FAMILIES.values()
    )
    without = [architecture for architecture, description in FAMILIES.items() if not description.caches_prompts]
    assert without == ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"]
