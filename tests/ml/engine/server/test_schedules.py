"""Samples of vLLM-Omni's engine, in this process, against samples of diffusers' own pipeline of the same model.

Schedulers have the configurations of released models. Some bounds of a dynamic shift, which count tokens, are smaller
here, so that the shift differs between the sizes of tiny samples.
"""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.ml.engine.local_engine import LocalEngine
from verl_omni.pipelines.scheduler_config import EULER

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HEIGHT = 96
WIDTH = 64
STEPS = 5
LENGTH = 32
FRAMES = 5
SEED = 7
GUIDANCE = 3.0
PROMPT = "a red circle"
NEGATIVE = "dark sky"
PICTURE = Image.new("RGB", (WIDTH, HEIGHT), "red")
PICTURE_PIXELS = 64 * 64  # the limit of the tiny processor; released ones have a larger one than upstream's sizes
DYNAMIC = {"use_dynamic_shifting": True, "base_image_seq_len": 16, "max_image_seq_len": 64}


@dataclass(frozen=True)
class Case:
    """A tiny model, changes of its scheduler's configuration, and settings of the engine and of the request."""

    model: str
    scheduler: dict[str, Any] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)  # changes of `model_index.json`
    engine: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    step_execution: bool = False
    shift: float | None = None  # replaces the shift of diffusers' scheduler
    negative: str = NEGATIVE  # diffusers' pipeline of FLUX.2-klein takes none


CASES = {
    "flux": Case("flux", DYNAMIC),
    "flux2_klein": Case("flux2_klein", negative=""),
    "flux2_klein, distilled": Case("flux2_klein", index={"is_distilled": True}, negative=""),
    "sd3": Case("sd3"),
    "sd3 with a dynamic shift": Case("sd3", DYNAMIC),
    "sd3 with a dynamic shift, step by step": Case("sd3", DYNAMIC, step_execution=True),
    "qwen_image": Case("qwen_image", DYNAMIC),
    "qwen_image, step by step": Case("qwen_image", DYNAMIC, step_execution=True),
    "qwen_image_edit_plus": Case("qwen_image_edit_plus", DYNAMIC),
    "wan": Case("wan"),
    "wan with a shift of the engine": Case("wan", engine={"flow_shift": 8.0}, shift=8.0),
    "wan with a shift of the request": Case(
        "wan", engine={"flow_shift": 8.0}, request={"video_flow_shift": 1.5}, shift=1.5
    ),
    "wan with another scheduler": Case("wan", {"shift": 7.0}, index={"scheduler": ["diffusers", EULER]}),
    "wan_5b": Case("wan_5b", {"flow_shift": 5.0}),
    "wan_a14b": Case("wan_a14b"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_engine_samples_like_diffusers(name: str, tmp_path: Path) -> None:
    from verl_omni.models.tiny import MAKERS

    case = CASES[name]
    MAKERS[case.model](tmp_path)
    file = tmp_path / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | case.scheduler))
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | case.index))
    pixels = asyncio.run(engine_sample(tmp_path, case))
    expected = diffusers_sample(tmp_path, case)
    assert pixels.shape == expected.shape
    difference = np.abs(pixels - expected).max()
    assert difference <= 1, f"{difference:.2f} of 255"
    assert pixels.std() > 5, "an image, whose noise levels show"


async def engine_sample(model: Path, case: Case) -> np.ndarray:
    """A sample of the engine, [..., 3, H, W] from 0 to 255."""
    params = {
        "height": HEIGHT,
        "width": WIDTH,
        "num_inference_steps": STEPS,
        "guidance_scale": GUIDANCE,
        "true_cfg_scale": GUIDANCE,
        "max_sequence_length": LENGTH,
        "seed": SEED,
        "pixel_dtype": "float32",
        "num_frames": FRAMES if case.model.startswith("wan") else 1,
        **case.request,
    }
    rollout = {"step_execution": case.step_execution, "engine_kwargs": {"vllm_omni": case.engine}}
    engine = LocalEngine(model, **rollout)
    image = PICTURE if "edit" in case.model else None
    try:
        output = await engine.sample("one", PROMPT, params, negative=case.negative, image=image)
    finally:
        engine.shutdown()
    pixels: np.ndarray = output.diffusion_output.numpy() * 255
    return pixels


def diffusers_sample(model: Path, case: Case) -> np.ndarray:
    """A sample of diffusers' pipeline, with Euler's solver, in the shape of `engine_sample`."""
    from diffusers import DiffusionPipeline
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus

    pipeline: Any = DiffusionPipeline.from_pretrained(model)
    pipeline.set_progress_bar_config(disable=True)
    video = case.model.startswith("wan")
    arguments: dict[str, Any] = {"num_frames": FRAMES} if video else {}
    if case.model.startswith("qwen"):
        head = pipeline.prompt_template_encode.partition("{}")[0]
        pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(head).input_ids)
        arguments["true_cfg_scale"] = GUIDANCE
    else:
        arguments["guidance_scale"] = GUIDANCE
    if "edit" in case.model:
        arguments["image"] = [PICTURE]
    if case.negative:
        arguments["negative_prompt"] = case.negative
    scheduler_config = {} if case.shift is None else {"flow_shift": case.shift}
    if type(pipeline.scheduler).__name__ == "UniPCMultistepScheduler":
        scheduler_config |= {"solver_order": 1, "disable_corrector": list(range(STEPS))}  # which is Euler's method
    pipeline.scheduler = pipeline.scheduler.from_config(pipeline.scheduler.config, **scheduler_config)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONDITION_IMAGE_SIZE", "VAE_IMAGE_SIZE"):
            patch.setattr(pipeline_qwenimage_edit_plus, name, PICTURE_PIXELS)
        output = pipeline(
            prompt=PROMPT,
            height=HEIGHT,
            width=WIDTH,
            num_inference_steps=STEPS,
            max_sequence_length=LENGTH,
            generator=torch.Generator().manual_seed(SEED),
            output_type="np",
            **arguments,
        )
    pixels: np.ndarray = np.moveaxis((output.frames if video else output.images)[0], -1, -3) * 255
    return pixels
