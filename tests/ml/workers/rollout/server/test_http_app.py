"""HTTP app of a server, with a fake engine."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from PIL import Image

from tests.ml.workers.rollout.fake_engine import command_line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # vLLM's app takes half a minute to import

GREEN = (0, 128, 0)


class Engine:
    """The methods of `AsyncOmni` that the image routes use; generates green images."""

    def __init__(self) -> None:
        from vllm_omni.inputs.data import OmniDiffusionSamplingParams

        self.stage_configs = [SimpleNamespace(stage_type="diffusion", engine_args={}, model_arch=None)]
        self.default_sampling_params_list = [OmniDiffusionSamplingParams()]
        self.asked: list[tuple[Any, Any]] = []
        self.names: list[str] = []
        self.errored = False
        self.model_config = None
        self.renderer = None
        self.input_processor = None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def get_vllm_config(self) -> None:
        return None

    def get_diffusion_od_config(self) -> None:
        return None

    async def check_health(self) -> None:
        return None

    async def generate(
        self, *, prompt: Any, request_id: str, sampling_params_list: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        from vllm_omni.errors import OmniClientError
        from vllm_omni.outputs import OmniRequestOutput

        params = sampling_params_list[0]
        self.asked.append((prompt, params))
        self.names.append(request_id)
        if prompt["prompt"] == "nonsense":
            raise OmniClientError("cannot draw that")
        yield OmniRequestOutput.from_diffusion("1", [Image.new("RGB", (params.width, params.height), GREEN)])


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Any]:
    from verl_omni.workers.rollout.vllm_rollout.server.http_app import Policy, PolicyEngine, build_http_app
    from verl_omni.workers.rollout.vllm_rollout.server.http_gate import HttpGate

    @asynccontextmanager
    async def policy() -> AsyncIterator[Policy]:
        yield Policy("policy", 7)

    engine = Engine()
    gate = HttpGate(0.1, nullcontext)
    app = await build_http_app(PolicyEngine(engine, policy, gate), command_line(tmp_path))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://replica") as http_client:
        yield SimpleNamespace(engine=engine, gate=gate, get=http_client.get, post=http_client.post)


async def test_several_images_of_a_prompt_are_one_request_each(client: Any) -> None:
    asked = {"prompt": "a lawn", "size": "16x16", "seed": 7, "n": 3}
    answer = await client.post("/v1/images/generations", json=asked)
    assert answer.status_code == 200 and len(answer.json()["data"]) == 3
    requests = [(params.seed, params.num_outputs_per_prompt, params.lora_request) for _, params in client.engine.asked]
    assert requests == [(7, 1, "policy"), (8, 1, "policy"), (9, 1, "policy")]
    assert len(set(client.engine.names)) == 3
    refused = await client.post("/v1/images/generations", json={**asked, "prompt": "nonsense"})
    assert refused.status_code == 400 and "cannot draw that" in refused.text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"prompt": "nonsense"}, "cannot draw that"),
        ({"size": "large"}, "WIDTHxHEIGHT"),
        ({"prompt": None}, "prompt"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"model": "another"}, "Model mismatch"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"guidance_scale": math.nan}, "guidance_scale"),
        ({"generator_device": "mps"}, "generator_device must be cpu, not 'mps'"),
        ({"prompt": "\ud800"}, "surrogates not allowed"),
        ({"lora": {"name": "mine", "path": "/mine", "int_id": 123}}, "adapter id 123 is reserved for the policy"),
        ({"lora": {"name": "mine", "path": "/missing"}}, "no LoRA adapter at '/missing' on the server's machine"),
        ({"lora": {"name": "mine", "path": "hub/adapter"}}, "no LoRA adapter at 'hub/adapter'"),
        ({"lora": {"name": "mine", "path": "~nosuchuser/a"}}, "no LoRA adapter at"),
        ({"lora": {"name": "mine", "path": "a" * 5000}}, "no LoRA adapter at"),
    ],
)
async def test_an_invalid_request_gets_an_error_message(client: Any, wrong: Any, words: str) -> None:
    asked = json.dumps({"prompt": "a lawn", "size": "16x16", **wrong})  # `json=` of httpx2 refuses NaN
    answer = await client.post("/v1/images/generations", content=asked, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500 and words in answer.text


async def test_routes_of_vllm_omni_precede_those_of_vllm(client: Any) -> None:
    assert (await client.get("/health")).json() == {"status": "healthy"}
    assert len((await client.get("/v1/models")).json()["data"]) == 1
    assert "python_info" in (await client.get("/metrics")).text


async def test_an_answer_has_the_version_of_its_weights(client: Any) -> None:
    answer = await client.post("/v1/images/generations", json={"prompt": "a lawn", "size": "16x16", "n": 2})
    assert answer.status_code == 200 and answer.headers["X-Weights-Version"] == "7"
    assert "X-Weights-Version" not in (await client.get("/health")).headers


async def test_a_request_that_waits_too_long_is_told_to_come_again(client: Any) -> None:
    async with client.gate.closed("the weights of this replica are being updated"):
        answer = await client.post("/v1/images/generations", json={"prompt": "a lawn", "size": "16x16"})
        assert (await client.get("/health")).status_code == 200
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
    assert answer.json()["error"]["message"] == (
        "the request was not admitted within 0.1 s (rollout.deadline_seconds), because the weights of this replica are "
        "being updated: send it again later"
    )
    assert client.engine.asked == []


async def test_an_engine_cannot_be_put_to_sleep_over_http(client: Any) -> None:
    for action in ("sleep", "wakeup"):
        assert (await client.post(f"/v1/omni/{action}", json={"stage_ids": [0]})).status_code == 404


async def test_a_diffusion_model_has_no_routes_for_texts_and_audio(client: Any) -> None:
    for path in ("/v1/completions", "/v1/responses", "/tokenize", "/invocations", "/v1/audio/speech"):
        assert (await client.post(path, json={"model": "m", "prompt": "a lawn"})).status_code == 404, path
