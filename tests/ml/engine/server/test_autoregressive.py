"""A language model behind the server (`output_mode: ar`) on the real engine: its tokens, and its weight updates.

Whatever it writes is compared with transformers, which has the same weights at any time.
"""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from torch import Tensor

from tests.ml.engine.replica_driver import announced
from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.errors import PeerFailed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = ["a red circle", "two blue square on the left of a house with a dog and a cat", "the", "yellow"]
PROMPT_LENGTH = 32
RESPONSE_LENGTH = 2000
ROOM = PROMPT_LENGTH + RESPONSE_LENGTH
AT_ONCE = 3  # requests in one engine step, fewer than are submitted
SOON = 60.0  # deadline of every answer, in seconds
START = 300.0  # the engine is a new process with all its imports
TOLERANCE = 1e-4  # of a log-probability; both sides compute in float32, in another order
RANK = 4


@dataclass
class Running:
    """One server with a tiny Qwen2."""

    server: Any
    address: str
    reference: Any  # transformers' model with the weights that the server has
    tokenizer: Any
    asked: int = 0

    def ids(self, prompt: str) -> list[int]:
        input_ids: list[int] = self.tokenizer(prompt).input_ids
        return input_ids

    def submit(self, prompt_ids: list[int], name: str | None = None, **params: Any) -> Any:
        """The reference of the answer; greedy by default."""
        self.asked += 1
        return self.server.generate.remote(
            prompt_ids=prompt_ids,
            sampling_params={"temperature": 0.0, "ignore_eos": True, **params},
            request_id=name or f"request-{self.asked}",
        )

    def write(self, prompt_ids: list[int], tokens: int) -> list[int]:
        token_ids: list[int] = answered(self.submit(prompt_ids, max_tokens=tokens))[0].token_ids
        return token_ids

    def greedy(self, prompt_ids: list[int], tokens: int) -> list[int]:
        """Greedy tokens of transformers."""
        inputs = torch.tensor([prompt_ids])
        sequences: Tensor = self.reference.generate(
            inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=tokens
        )
        new_tokens: list[int] = sequences[0, len(prompt_ids) :].tolist()
        return new_tokens

    def log_probs(self, prompt_ids: list[int], answer: list[int]) -> Tensor:
        """Log-probability of each token of an answer, by transformers."""
        with torch.no_grad():
            logits = self.reference(torch.tensor([prompt_ids + answer])).logits[0, len(prompt_ids) - 1 : -1]
        return logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]

    def send(
        self, weights: Iterable[tuple[str, Tensor]], version: int, adapter: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send weights as the trainer does; the worker's answer."""
        import ray

        update = f"step-{version}-{secrets.token_hex(4)}"
        job = ray.get_runtime_context().get_job_id()
        handle, told = announced(update, 10.0, job=job, adapter=adapter, version=version)
        receiving = self.server.collective_rpc.remote("update_weights_from_ipc", kwargs=told)
        with contextlib.suppress(PeerFailed):  # the worker's answer has the cause
            ipc.send(iter(weights), handle=handle, bucket_bytes=1 << 13, device=None, deadline=10.0)
        ((answer,),) = answered(receiving)
        answered(self.server.set_global_steps.remote(version))
        body: dict[str, Any] = answer
        return body


def answered(*references: Any, within: float = SOON) -> list[Any]:
    import ray

    return ray.get(list(references), timeout=within)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tests.ml.engine.server.tiny_qwen2 import make_tiny_qwen2
    from verl_omni.trainer import startup

    model = tmp_path_factory.mktemp("tiny") / "qwen2"
    make_tiny_qwen2(model)
    startup.prepare_environment(has_accelerator=False)
    cluster = started()
    try:
        server = launched(model)
        yield reference(server, model)
        answered(server.shutdown.remote())
    finally:
        cluster.stop()


def started() -> Any:
    """Ray, whose workers are forks of a process that has imported the engine."""
    from verl_omni.platforms.cpu.fork_server import ForkingCluster

    return ForkingCluster([], num_cpus=4, num_gpus=1, include_dashboard=False, _node_ip_address="127.0.0.1")


def launched(model: Path) -> Any:
    """The server as verl's replica starts it."""
    import ray
    from omegaconf import OmegaConf
    from verl.workers.rollout.replica import RolloutMode

    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniHttpServer

    rollout = OmegaConf.create(
        {
            "_target_": "verl_omni.workers.config.DiffusionRolloutConfig",
            "dtype": "float32",
            "enforce_eager": True,
            "load_format": "auto",
            "prompt_length": PROMPT_LENGTH,
            "response_length": RESPONSE_LENGTH,
            "max_num_seqs": AT_ONCE,
            "tensor_model_parallel_size": 1,
            "enable_sleep_mode": False,
            # Smaller than a prompt, so that prefill is chunked.
            "max_num_batched_tokens": 16,
            "gpu_memory_utilization": 0.1,
            "enable_prefix_caching": True,
            "engine_kwargs": {"vllm_omni": {"output_mode": "ar", "distributed_executor_backend": "uni"}},
        }
    )
    target = OmegaConf.create({"_target_": "verl.workers.config.HFModelConfig", "path": str(model), "lora_rank": RANK})
    server = (
        ray.remote(vLLMOmniHttpServer)
        .options(max_concurrency=100)
        .remote(
            config=rollout,
            model_config=target,
            rollout_mode=RolloutMode.HYBRID,
            workers=[],
            replica_rank=0,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices="",
        )
    )
    answered(server.launch_server.remote(), within=START)
    return server


def reference(server: Any, model: Path) -> Running:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (host, port) = answered(server.get_server_address.remote())[0]
    same = AutoModelForCausalLM.from_pretrained(model)
    same.generation_config.eos_token_id = None  # greedy decoding must not stop early
    return Running(server, f"http://{host}:{port}", same, AutoTokenizer.from_pretrained(model))


# --- answers -------------------------------------------------------------------------------------------


def test_greedy_tokens_are_those_of_transformers(running: Running) -> None:
    prompts = [running.ids(prompt) for prompt in PROMPTS]
    assert len(prompts) > AT_ONCE and max(map(len, prompts)) > 16, "none waits, or none comes in parts"
    answers = answered(*[running.submit(ids, max_tokens=20) for ids in prompts])
    for ids, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == running.greedy(ids, 20)
        assert answer.stop_reason == "completed" and answer.log_probs is None
    assert len({tuple(answer.token_ids) for answer in answers}) == len(PROMPTS)


def test_log_probabilities_are_those_of_transformers(running: Running) -> None:
    ids = running.ids(PROMPTS[1])
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 20}
    answers = answered(
        running.submit(ids, max_tokens=20, logprobs=True),
        running.submit(ids, logprobs=True, **drawn),
        running.submit(ids, logprobs=2, **drawn),
    )
    greedy, sampled, again = answers
    assert greedy.token_ids != sampled.token_ids == again.token_ids
    for answer in answers:
        log_probs = torch.tensor(answer.log_probs)
        torch.testing.assert_close(log_probs, running.log_probs(ids, answer.token_ids), atol=TOLERANCE, rtol=0)


def test_a_seed_gives_the_same_tokens_however_prefill_is_chunked(running: Running) -> None:
    ids = (running.ids(PROMPTS[1]) * 9)[:100]
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 12}
    (alone,) = answered(running.submit(ids, **drawn))
    # Requests in the same step make the chunks smaller.
    together = answered(running.submit(ids, **drawn), running.submit(ids[::-1], **drawn), running.submit(ids, **drawn))
    assert together[0].token_ids == together[2].token_ids == alone.token_ids != together[1].token_ids


def test_an_answer_ends_at_max_tokens_or_at_the_context_length(running: Running) -> None:
    long = (running.ids(PROMPTS[1]) * ROOM)[: ROOM - 4]
    short, full = answered(running.submit(running.ids("the"), max_tokens=5), running.submit(long, max_tokens=50))
    assert len(short.token_ids) == 5 and len(full.token_ids) == 4
    assert full.token_ids == running.greedy(long, 4)
    stop = running.greedy(running.ids("the"), 4)[-1]
    (stopped,) = answered(running.submit(running.ids("the"), max_tokens=50, stop_token_ids=[stop]))
    assert stopped.token_ids[-1] == stop and len(stopped.token_ids) <= 4 and stopped.stop_reason == "completed"


@pytest.mark.parametrize(
    ("prompt_ids", "params", "message"),
    [
        ([5], {"temperature": -1.0}, "temperature"),
        ([10**6], {}, "out of vocabulary"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(
    running: Running, prompt_ids: list[int], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        answered(running.submit(prompt_ids, **params))


def test_the_http_api_returns_the_same_tokens_as_training(running: Running) -> None:
    ids = running.ids(PROMPTS[0])
    asked = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    answer = httpx2.post(f"{running.address}/v1/completions", json=asked, timeout=SOON)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["token_ids"] == running.greedy(ids, 8) and choice["text"]
    refused = httpx2.post(f"{running.address}/v1/completions", json={**asked, "max_tokens": -1}, timeout=SOON)
    assert refused.status_code == 400 and "max_tokens" in refused.text


# --- weights -------------------------------------------------------------------------------------------


def changed(running: Running, seed: int) -> dict[str, Tensor]:
    """New weights for every parameter, already applied to the reference model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in running.reference.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return {name: parameter.detach().clone() for name, parameter in running.reference.named_parameters()}


def test_new_weights_give_other_tokens_and_the_answer_has_their_version(running: Running) -> None:
    # Longer than a block of the KV cache, which must not be reused after the weights changed.
    long = (running.ids(PROMPTS[1]) * 20)[:200]
    before = running.write(long, 8)
    assert before == running.greedy(long, 8)
    weights = changed(running, seed=1)
    answer = running.send(weights.items(), version=1)
    assert answer["tensors"] == len(weights) and answer["buckets"] > 1 and not answer["lora"]
    (after,) = answered(running.submit(long, max_tokens=8))
    assert after.token_ids == running.greedy(long, 8) != before
    assert after.extra_fields["global_steps"] == 1 == answered(running.server.get_global_steps.remote())[0]


def test_weights_arrive_while_the_kv_cache_is_asleep(running: Running) -> None:
    import ray

    ids = running.ids(PROMPTS[0])
    answered(running.server.sleep.remote())
    answered(running.server.wake_up.remote(["weights"]))
    running.send(changed(running, seed=3).items(), version=2)
    early = running.submit(ids, max_tokens=6)
    assert ray.wait([early], timeout=0.5)[0] == [], "the cache is still asleep"
    answered(running.server.wake_up.remote(["kv_cache"]))
    assert answered(early)[0].token_ids == running.greedy(ids, 6)


def until_in_flight(running: Running) -> None:
    for _ in range(10_000):
        if answered(running.server.__ray_call__.remote(lambda own: len(own.engine.request_states))) == [1]:
            return
    raise AssertionError("the request never ran")


def test_weights_do_not_change_during_a_request(running: Running) -> None:
    ids = running.ids(PROMPTS[0])
    running_on = running.submit(ids, "long", max_tokens=1900)
    until_in_flight(running)
    with pytest.raises(Exception, match="1 requests are in flight: abort them or wait"):
        answered(running.server.collective_rpc.remote("update_weights_from_ipc", kwargs={"deadline": 10.0}))
    answered(running.server.abort_request.remote("long"))
    assert answered(running_on)[0].stop_reason == "aborted"
    assert running.write(ids, 6) == running.greedy(ids, 6)


def test_after_half_an_update_requests_fail_until_a_complete_one(running: Running) -> None:
    ids = running.ids(PROMPTS[0])
    weights = changed(running, seed=2)
    broken = {**weights, "lm_head.weight": torch.full_like(weights["lm_head.weight"], torch.nan)}
    with pytest.raises(Exception, match=r"\[PartialWeights\].*lm_head.weight has values that are not finite"):
        running.send(broken.items(), version=2)
    with pytest.raises(Exception, match="failed part-way"):
        answered(running.submit(ids))
    running.send(weights.items(), version=3)
    assert running.write(ids, 6) == running.greedy(ids, 6)


def test_an_adapter_is_attached_and_replaced_and_an_invalid_one_changes_nothing(running: Running) -> None:
    from peft import LoraConfig, get_peft_model

    ids = running.ids(PROMPTS[0])
    plain = running.reference
    settings = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"])
    running.reference = get_peft_model(plain, settings)
    texts = [running.write(ids, 8)]
    for version in (4, 5):
        generator = torch.Generator().manual_seed(version)
        adapter: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, parameter in running.reference.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
                    adapter[name.replace(".default", "")] = parameter.detach().clone()
        answer = running.send(adapter.items(), version, settings.to_dict())
        assert answer["lora"] and answer["tensors"] == len(adapter) == 2 * answer["bound"]
        texts.append(running.write(ids, 8))
        assert texts[-1] == running.greedy(ids, 8)
    assert len(set(map(tuple, texts))) == 3
    elsewhere = {name.replace("layers.1", "layers.7"): tensor for name, tensor in adapter.items()}
    with pytest.raises(Exception, match=r"\[BindingIncomplete\] 4 of 8 LoRA modules are not in the engine"):
        running.send(elsewhere.items(), 6, settings.to_dict())
    assert running.write(ids, 8) == texts[-1]
