"""A replica's server on the real engine: samples, routing, HTTP API, metrics, and requests that end early."""

import asyncio
import base64
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.ml.engine.replica_driver import Replica
from tests.ml.engine.small_run import small_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = ["a red circle", "two cat photo"]
SIZE = 64
STEPS = 4
AT_ONCE = 4  # requests in one engine batch
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Running:
    """Two replicas behind verl's router."""

    stack: Any
    tokenizer: Any
    http: httpx2.Client

    def ids(self, prompt: str) -> list[int]:
        input_ids: list[int] = self.tokenizer(prompt).input_ids
        return input_ids

    def submit(self, prompt: str, seed: int, replica: int = 0, **params: Any) -> Any:
        """The reference of a sample of one replica."""
        return self.stack.servers.server_handles[replica].generate.remote(
            prompt_ids=self.ids(prompt),
            sampling_params={**parameters(seed), **params},
            request_id=f"{prompt}-{seed}",
        )

    def metrics(self, replica: int = 0) -> dict[str, float]:
        """Each counter's and gauge's sum over its labels, by name."""
        answer = self.http.get(f"http://{self.stack.servers.server_addresses[replica]}/metrics", timeout=30)
        assert answer.status_code == 200
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values

    def admitted(self) -> float:
        """Requests in the engine. How many of them run is counted only when one comes or ends, so it is not known."""
        gauges = self.metrics()
        return gauges["vllm_omni:num_requests_running"] + gauges["vllm_omni:num_requests_waiting"]

    def post(self, path: str, **content: Any) -> httpx2.Response:
        return self.http.post(f"http://{self.stack.servers.server_addresses[0]}{path}", **{"timeout": 60, **content})


def parameters(seed: int) -> dict[str, Any]:
    return dict(Replica.request(seed)["sampling_params"])


@pytest.fixture(scope="module")
def running(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from transformers import AutoTokenizer

    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    model = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_sd3(model)
    _, stack = start(
        PROMPTS,
        *small_run(model),
        "trainer.n_gpus_per_node=2",
        f"actor_rollout_ref.rollout.max_num_seqs={AT_ONCE}",
        "actor_rollout_ref.rollout.disable_log_stats=false",
        # Long enough to fill batches on a busy machine; a full batch does not wait.
        "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.request_batch_max_wait_ms=250.0",
    )
    stack.weights.update_weights(global_steps=0)
    # One client: one per request would load certificates, and a request could end between two looks at the metrics.
    with httpx2.Client() as http:
        yield Running(stack, AutoTokenizer.from_pretrained(model / "tokenizer"), http)


def answered(*references: Any) -> list[Any]:
    import ray

    return ray.get(list(references), timeout=120)  # type: ignore[no-any-return]


def png(answer: httpx2.Response) -> Image.Image:
    assert answer.status_code == 200, answer.text
    image = Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
    assert image.format == "PNG"
    return image


# --- samples -------------------------------------------------------------------------------------------


def test_pixels_floats_and_latents_of_one_request(running: Running) -> None:
    (pixels, floats, latents) = answered(
        running.submit(PROMPTS[0], 1),
        running.submit(PROMPTS[0], 1, pixel_dtype="float32"),
        running.submit(PROMPTS[0], 1, output_type="latent"),
    )
    assert pixels.diffusion_output.dtype == torch.uint8 and pixels.diffusion_output.shape == (3, SIZE, SIZE)
    assert floats.diffusion_output.dtype == torch.float32
    bytes_of_floats = floats.diffusion_output.mul(255).round().to(torch.uint8)
    # The batch size affects rounding.
    assert (bytes_of_floats.int() - pixels.diffusion_output.int()).abs().max() <= 1
    assert latents.diffusion_output.shape == (16, SIZE // 8, SIZE // 8)
    assert latents.diffusion_output.dtype == torch.float32
    assert [sample.extra_fields["global_steps"] for sample in (pixels, floats, latents)] == [0, 0, 0]


def test_requests_are_batched_and_each_gets_its_own_image(running: Running) -> None:
    alone = [answered(running.submit(PROMPTS[0], seed))[0].diffusion_output for seed in range(AT_ONCE)]
    before = len(batches(running))
    together = answered(*[running.submit(PROMPTS[0], seed) for seed in range(AT_ONCE)])
    drawn = batches(running)[before:]
    assert sum(drawn) == AT_ONCE and max(drawn) > 1, "nothing was batched"
    for seed, sample in enumerate(together):
        assert (sample.diffusion_output.int() - alone[seed].int()).abs().max() <= 1
        assert not torch.equal(sample.diffusion_output, alone[(seed + 1) % AT_ONCE])


def batches(running: Running) -> list[int]:
    """Sizes of the batches of the first replica's engine, since the first call of this function."""

    def counting(self: Any) -> list[int]:  # runs in the server's process, which is the engine's worker on a CPU
        from verl_omni.pipelines.sd3.engine_pipeline import SD3RolloutPipeline as Pipeline

        if not hasattr(Pipeline, "batches"):
            Pipeline.batches = []
            plain = Pipeline.forward

            def forward(self: Any, req: Any) -> Any:
                Pipeline.batches.append(req.num_reqs)
                return plain(self, req)

            Pipeline.forward = forward
        return list(Pipeline.batches)

    sizes: list[int] = answered(running.stack.servers.server_handles[0].__ray_call__.remote(counting))[0]
    return sizes


# --- routing -------------------------------------------------------------------------------------------


def test_the_router_keeps_a_conversation_on_one_replica_and_spreads_the_rest(running: Running) -> None:
    balancer = running.stack.servers.global_load_balancer
    client = running.stack.servers.get_client()

    async def ask(name: str, seed: int) -> Any:
        return await client.generate(
            name, prompt_ids=running.ids(PROMPTS[0]), sampling_params=Replica.request(seed)["sampling_params"]
        )

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*[ask(f"row-{seed}", seed) for seed in range(6)])

    before = [counted(running, replica) for replica in (0, 1)]
    outputs = asyncio.run(all_at_once())
    assert len({tuple(output.diffusion_output.flatten()[:99].tolist()) for output in outputs}) == 6
    assert [counted(running, replica) - was for replica, was in enumerate(before)] == [3, 3]
    assert {output.extra_fields["min_global_steps"] for output in outputs} == {0}
    (first,) = answered(balancer.acquire_server.remote("talk"))
    (elsewhere,) = answered(balancer.acquire_server.remote("someone else"))
    (again,) = answered(balancer.acquire_server.remote("talk"))
    assert first[0] == again[0] != elsewhere[0]
    for server in (first, elsewhere, again):
        answered(balancer.release_server.remote(server_id=server[0]))
    assert answered(balancer.get_total_inflight.remote()) == [0]


def counted(running: Running, replica: int) -> int:
    return int(running.metrics(replica).get("vllm_omni:requests_success_total", 0))  # none before the first


# --- HTTP ----------------------------------------------------------------------------------------------


def test_the_http_api_returns_the_same_image_as_training(running: Running) -> None:
    asked = {
        "prompt": PROMPTS[0],
        "size": f"{SIZE}x{SIZE}",
        "seed": 7,
        "num_inference_steps": STEPS,
        "guidance_scale": 1.0,
    }
    image = png(running.post("/v1/images/generations", json=asked))
    assert image.size == (SIZE, SIZE) and image.mode == "RGB"
    (sample,) = answered(running.submit(PROMPTS[0], 7, max_sequence_length=256))
    assert np.array_equal(np.asarray(image), sample.diffusion_output.permute(1, 2, 0).numpy())
    wide_image = png(running.post("/v1/images/generations", json={**asked, "prompt": PROMPTS[1], "size": "96x32"}))
    assert wide_image.size == (96, 32)
    assert not np.array_equal(
        np.asarray(image), np.asarray(png(running.post("/v1/images/generations", json={**asked, "prompt": PROMPTS[1]})))
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": "65x64"}, "width must be a multiple of 16, not 65"),
        ({"size": "64x2048"}, "height must be at most 1024, not 2048"),
        ({"n": 3, "size": "64x65"}, "height must be a multiple of 16, not 65"),
        ({"true_cfg_scale": math.nan}, "true_cfg_scale"),
        ({"extra_params": {"noise_level": "high"}}, "could not convert string to float: 'high'"),
    ],
)
def test_an_invalid_image_request_is_answered_with_the_reason(
    running: Running, wrong: dict[str, Any], words: str
) -> None:
    asked = {"prompt": PROMPTS[0], "size": f"{SIZE}x{SIZE}", "num_inference_steps": STEPS, **wrong}
    # Not `json=`, which refuses NaN.
    answer = running.post("/v1/images/generations", content=json.dumps(asked), headers=JSON)
    assert 400 <= answer.status_code < 500 and words in answer.text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"height": "tall"}, "height"),
        ({"num_inference_steps": 10**9}, "from 1 to 200"),
        ({"extra_params": {"noise_level": "high"}}, "could not convert"),
    ],
)
def test_an_invalid_chat_request_is_answered_with_the_reason(
    running: Running, wrong: dict[str, Any], words: str
) -> None:
    asked = {"messages": [{"role": "user", "content": PROMPTS[0]}], "height": SIZE, "width": SIZE, **wrong}
    answer = running.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400 and words in answer.text


def test_an_input_image_is_refused_by_a_model_without_image_input(running: Running) -> None:
    file = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE)).save(file, "PNG")
    answer = running.post(
        "/v1/images/edits", files={"image": ("a.png", file.getvalue(), "image/png")}, data={"prompt": PROMPTS[0]}
    )
    assert answer.status_code == 400 and "accepts text prompts only" in answer.text


def test_metrics_count_generated_and_failed_requests(running: Running) -> None:
    before = running.metrics()
    answered(*[running.submit(PROMPTS[0], seed) for seed in range(3)])
    after = running.metrics()

    def grown(name: str) -> float:
        return after[f"vllm_omni:{name}"] - before.get(f"vllm_omni:{name}", 0.0)

    assert grown("requests_success_total") == 3 and grown("requests_failed_total") == 0
    for histogram in ("e2e_request_latency_s", "stage_gen_time_s", "diffusion_exec_s"):
        assert grown(f"{histogram}_count") >= 3
    assert after["vllm_omni:num_requests_running"] == after["vllm_omni:num_requests_waiting"] == 0
    before = after
    with pytest.raises(Exception, match="height must be a multiple"):
        answered(running.submit(PROMPTS[0], 1, height=65))
    after = running.metrics()
    assert grown("requests_failed_total") == 1


# --- control -------------------------------------------------------------------------------------------


def test_one_request_is_aborted_and_its_neighbour_is_not(running: Running) -> None:
    victim = running.submit(PROMPTS[0], 1, num_inference_steps=60)
    neighbour = running.submit(PROMPTS[1], 2, num_inference_steps=60)
    server = running.stack.servers.server_handles[0]
    answer: dict[str, Any] = {}

    def aborted() -> bool:
        answer.update(answered(server.abort_request.remote(f"{PROMPTS[0]}-1"))[0])
        return bool(answer["aborted"])

    waiting_for(aborted)
    victim_output, neighbour_output = answered(victim, neighbour)
    assert (victim_output.stop_reason, neighbour_output.stop_reason) == ("aborted", "completed")
    assert victim_output.diffusion_output.numel() == 0 and neighbour_output.diffusion_output.shape == (3, SIZE, SIZE)


def waiting_for(there: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if there():
            return
    raise AssertionError("the condition was never met")


def test_a_request_over_http_ends_when_its_client_goes_away(running: Running) -> None:
    answered(running.submit(PROMPTS[0], 1))  # the first one makes the counter
    before = running.metrics()["vllm_omni:diffusion_exec_s_count"]
    asked = {"prompt": PROMPTS[0], "size": f"{SIZE}x{SIZE}", "num_inference_steps": 200, "n": 2 * AT_ONCE}
    with pytest.raises(httpx2.ReadTimeout):
        running.post("/v1/images/generations", json=asked, timeout=0.5)
    waiting_for(lambda: running.admitted() == 0)
    assert answered(running.stack.servers.server_handles[0].requests_in_flight.remote()) == [0]
    assert running.metrics()["vllm_omni:diffusion_exec_s_count"] == before, "images that no client waits for"
