"""The adapter folder of a run in the programs that read it, and adapters that a client names over HTTP."""

import base64
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.ml.engine.small_run import small_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPT = "a red circle"
SIZE = 64
STEPS = 4
SEED = 7
TARGETS = ["attn.to_q", "attn.to_k", "attn.to_out.0", "attn.add_q_proj", "attn.to_add_out"]
# vLLM-Omni alone, in a process without this project's worker extension.
STOCK_ENGINE = """
import sys
from vllm_omni import Omni
from vllm_omni.inputs.data import OmniDiffusionSamplingParams
from vllm_omni.lora.request import LoRARequest

if __name__ == "__main__":
    model, adapter, image = sys.argv[1:]
    engine = Omni(model=model, enforce_eager=True, dtype="float32")
    params = OmniDiffusionSamplingParams(
        height={size}, width={size}, num_inference_steps={steps}, guidance_scale=1.0, seed={seed},
        lora_request=LoRARequest("mine", 7, adapter),
    )
    engine.generate({prompt!r}, params)[0].images[0].save(image)
    engine.close()
"""


def save_adapter(model: Path, folder: Path, *, seed: int = 1, rank: int = 4, alpha: int = 6) -> None:
    """Write an adapter as a checkpoint of a run does; its alpha / rank is no power of two."""
    from diffusers import SD3Transformer2DModel
    from peft import LoraConfig

    from verl_omni.workers.actor import export

    transformer = SD3Transformer2DModel.from_pretrained(model, subfolder="transformer")
    transformer.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules=TARGETS), export.ADAPTER)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in transformer.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    export.stage_adapter(transformer, folder, write=True)()


class Server:
    """A replica's HTTP server."""

    def __init__(self, address: str, model: Path) -> None:
        self.address = address
        self.model = model

    def ask(self, **content: Any) -> httpx2.Response:
        asked = {
            "prompt": PROMPT,
            "size": f"{SIZE}x{SIZE}",
            "seed": SEED,
            "num_inference_steps": STEPS,
            "guidance_scale": 1.0,
            **content,
        }
        return httpx2.post(f"http://{self.address}/v1/images/generations", json=asked, timeout=120)

    def draw(self, **content: Any) -> np.ndarray:
        answer = self.ask(**content)
        assert answer.status_code == 200, answer.text
        return pixels(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))


def pixels(file: Any) -> np.ndarray:
    return np.asarray(Image.open(file).convert("RGB")).astype(int)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_sd3(folder)
    return folder


@pytest.fixture(scope="module")
def server(start: Any, model: Path) -> Server:
    _, stack = start([PROMPT, "a blue square"], *small_run(model))
    stack.weights.update_weights(global_steps=0)
    return Server(stack.servers.server_addresses[0], model)


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "lora"
    save_adapter(model, folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path, adapter: Path) -> np.ndarray:
    """The image of diffusers' pipeline with the adapter."""
    return draw_with_diffusers(model, lambda pipeline: pipeline.load_lora_weights(adapter))


def draw_with_diffusers(model: Path, change: Callable[[Any], None]) -> np.ndarray:
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(model)
    pipeline.set_progress_bar_config(disable=True)
    change(pipeline)
    image = pipeline(
        PROMPT,
        num_inference_steps=STEPS,
        guidance_scale=1.0,
        height=SIZE,
        width=SIZE,
        generator=torch.Generator().manual_seed(SEED),
    ).images[0]
    return np.asarray(image).astype(int)


def test_vllm_omni_alone_draws_with_the_folder_as_diffusers_does(
    model: Path, adapter: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    program = tmp_path / "stock.py"
    program.write_text(STOCK_ENGINE.format(size=SIZE, steps=STEPS, seed=SEED, prompt=PROMPT))
    image = tmp_path / "image.png"
    command = [sys.executable, program, model, adapter, image]
    engine = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert engine.returncode == 0, engine.stdout
    assert abs(pixels(image) - expected).max() <= 1


def test_the_server_draws_with_the_folder_as_diffusers_does(
    server: Server, adapter: Path, expected: np.ndarray
) -> None:
    policy = server.draw()
    assert abs(server.draw(lora={"name": "mine", "path": str(adapter)}) - expected).max() <= 1
    assert abs(policy - expected).max() > 10
    assert np.array_equal(server.draw(), policy), "the next request has the policy's adapter again"
    half = draw_with_diffusers(
        server.model,
        lambda pipeline: (pipeline.load_lora_weights(adapter, adapter_name="a"), pipeline.set_adapters("a", 0.5)),
    )
    assert abs(server.draw(lora={"name": "mine", "path": str(adapter), "scale": 0.5}) - half).max() <= 1


def test_peft_draws_with_the_folder_as_diffusers_does(model: Path, adapter: Path, expected: np.ndarray) -> None:
    from peft import PeftModel

    def load(pipeline: Any) -> None:
        pipeline.transformer = PeftModel.from_pretrained(pipeline.transformer, adapter).base_model.model

    assert abs(draw_with_diffusers(model, load) - expected).max() <= 1


def test_a_program_that_ignores_alpha_applies_the_same_adapter(
    model: Path, adapter: Path, expected: np.ndarray
) -> None:
    tensors = load_file(adapter / "pytorch_lora_weights.safetensors")  # without the file's metadata
    assert all("lora_" in name for name in tensors), "an entry that diffusers refuses"

    def merge(pipeline: Any) -> None:
        for name in tensors:
            if name.endswith(".lora_A.weight"):
                module = name.removesuffix(".lora_A.weight")
                layer = pipeline.transformer.get_submodule(module.removeprefix("transformer."))
                layer.weight.data += tensors[f"{module}.lora_B.weight"] @ tensors[name]

    assert abs(draw_with_diffusers(model, merge) - expected).max() <= 1


def test_a_folder_that_was_saved_again_is_read_again(server: Server, tmp_path: Path) -> None:
    lora = {"name": "mine", "path": str(tmp_path), "int_id": 5}
    images = []
    for seed in (1, 2):
        save_adapter(server.model, tmp_path, seed=seed)
        images.append(server.draw(lora=lora))
        drawn = draw_with_diffusers(server.model, lambda pipeline: pipeline.load_lora_weights(tmp_path))
        assert abs(images[-1] - drawn).max() <= 1
    assert abs(images[0] - images[1]).max() > 1
    save_adapter(server.model, tmp_path / "other", seed=3)
    third = server.draw(lora={**lora, "path": str(tmp_path / "other")})
    assert abs(third - images[1]).max() > 1, "another folder with the same id"


def edit_settings(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


def rename(old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        save_file(
            {name.replace(old, new): tensor for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
        )

    return edit


@pytest.mark.parametrize(
    ("rank", "edit", "words"),
    [
        (513, edit_settings(), "rank"),
        (4, edit_settings(alpha_pattern={"attn.to_q": 1}), "alpha_pattern"),
        (4, edit_settings(use_dora=True), "use_dora"),
        (4, edit_settings(r=8), "rank is 8"),
        (4, rename("transformer_blocks.0", "blocks.0"), "not in the engine"),
        (4, rename("attn.to_q", "attn.q"), "not in the engine"),
        (4, rename("attn.to_q.lora_A", "attn.to_q.lora_C"), "not a LoRA tensor"),
        (4, lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"{"), "cannot be read"),
        (4, lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is not there"),
    ],
)
def test_an_adapter_that_the_engine_cannot_serve_is_refused(
    server: Server, tmp_path: Path, rank: int, edit: Callable[[Path], Any], words: str
) -> None:
    policy = server.draw()
    save_adapter(server.model, tmp_path, rank=rank)
    edit(tmp_path)
    for _ in range(2):  # vLLM-Omni alone serves the second request
        answer = server.ask(lora={"name": "mine", "path": str(tmp_path)})
        assert answer.status_code == 400 and words in answer.text, answer.text
    assert np.array_equal(server.draw(), policy)
