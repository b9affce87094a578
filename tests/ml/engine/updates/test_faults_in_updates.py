"""Faults in a weight update while two replicas serve: each ends with the expected error, hangs and leaves
nothing, and the old weights are still served.
"""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import torch
from torch import Tensor

from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.replica_driver import DEADLINE, LAYER, PROMPTS, SOON, Replica, TwoReplicas, lora_settings, wait_for
from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.buckets import compute_digest
from verl_omni.weight_sync.buffers import SendBuffer
from verl_omni.weight_sync.messages import BucketMessage, Entry, ReplyMessage

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def refused(answer: Any) -> str:
    """The worker's error for a refused update."""
    import ray

    with pytest.raises(Exception, match=r"(update_weights_from_ipc|commit_adapter) failed") as caught:
        ray.get(answer, timeout=SOON)
    return str(caught.value)


def test_a_sender_that_is_killed_between_two_buckets(replica: Replica) -> None:
    handle, answer = replica.begin()
    program = f"""
        import os, signal, torch
        from verl_omni.weight_sync import ipc
        def weights():
            for number in range(9):
                if number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield f"{LAYER.format(block=0, part="q")}.lora_{{number}}", torch.ones(4, 32)
        ipc.send(weights(), handle={handle!r}, bucket_bytes=600, device=None, deadline={DEADLINE})
    """
    sender = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, timeout=SOON)
    assert sender.returncode == -signal.SIGKILL
    assert "PeerDisconnected" in refused(answer)


def bucket(fault: str) -> tuple[dict[str, Tensor], BucketMessage]:
    """The tensors in a faulty sender's buffer, and its message after the first."""
    q, k = (f"{LAYER.format(block=0, part=part)}.lora_A.weight" for part in "qk")
    tensors = {q: torch.full((4, 32), 1.0), k: torch.full((4, 32), 2.0)}
    size = tensors[q].nbytes
    places = {"re-ordered": {q: size, k: 0}, "left out": {k: size}}[fault]
    digests = {name: compute_digest(tensor.view(-1).view(torch.uint8)) for name, tensor in tensors.items()}
    entries = {name: Entry((4, 32), "float32", offset, digests[name]) for name, offset in places.items()}
    return tensors, BucketMessage(entries, [q, k])


@pytest.mark.parametrize(("fault", "refusal"), [("re-ordered", "digest mismatch"), ("left out", "missing")])
def test_a_corrupt_bucket_is_refused(replica: Replica, fault: str, refusal: str) -> None:
    handle, answer = replica.begin()
    tensors, message = bucket(fault)
    buffer = SendBuffer(None)
    with ipc.Channel(handle, DEADLINE, owner=True) as channel:
        begin = buffer.replace(1024, 1024)
        offset = 0
        for tensor in tensors.values():
            buffer.tensor[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
            offset += tensor.nbytes
        for sent in (begin, message):
            channel.send(sent)
            channel.receive(ReplyMessage)
    buffer.close()
    assert refusal in refused(answer)


def bad(fault: str) -> list[tuple[str, Tensor]]:
    """The tensors of an invalid adapter."""
    module = "transformer.no_such_block.attn.to_q" if fault == "unknown module" else LAYER.format(block=0, part="q")
    a = torch.ones(4, 7 if fault == "wrong shape" else 32)
    return [(f"{module}.lora_A.weight", a), (f"{module}.lora_B.weight", torch.ones(32, 4))]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unknown module", "1 of 1 LoRA modules are not in the engine"),
        ("wrong shape", "but the adapter has lora_A (4, 7) and lora_B (32, 4)"),
    ],
)
def test_a_bad_adapter_is_refused(replica: Replica, fault: str, message: str) -> None:
    """Faults 1 and 3: an adapter must bind every module, and the old one stays until the new one is complete."""
    import ray

    from verl_omni.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID

    handle, answer = replica.begin()
    ipc.send(bad(fault), handle=handle, bucket_bytes=4096, device=None, deadline=DEADLINE)
    assert message in refused(answer)
    assert ray.get(replica.server.collective_rpc.remote("list_loras"))[0] == VLLM_LORA_INT_ID


Change = tuple[int, int, str]  # rank, alpha, parts of the attention
CHANGES: list[Change] = [(2, 2, "q"), (2, 2, "v"), (4, 4, "qk"), (4, 8, "qk"), (8, 8, "qkv")]


def change(replica: Replica, kind: Change) -> Tensor:
    """The image after an update by an adapter with these settings."""
    rank, alpha, parts = kind
    weights = replica.adapter(1.0, rank, parts)
    report = replica.publish(weights, version=1, settings=lora_settings(rank, alpha, parts))
    assert report["bound"] == 2 * len(parts), "a module of each block for each part"
    return replica.picture()  # type: ignore[no-any-return]


def test_rank_alpha_and_modules_may_change_and_nothing_of_the_previous_adapter_stays(two_replicas: TwoReplicas) -> None:
    """One replica receives the adapters in order, the other in reverse: predecessors differ."""
    upward, downward = two_replicas.replicas
    first = upward.picture()
    counted = Leftovers()
    upwards = {kind: change(upward, kind) for kind in CHANGES}
    downwards = {kind: change(downward, kind) for kind in reversed(CHANGES)}
    for number, kind in enumerate(CHANGES):
        assert torch.equal(upwards[kind], downwards[kind]), kind
        same = [earlier for earlier in CHANGES[:number] if torch.equal(upwards[kind], upwards[earlier])]
        assert same == [], f"{kind} draws what {same} draws"
    assert torch.equal(upwards[4, 4, "qk"], first), "the pictures of the adapter that the engine took first"
    for replica in two_replicas.replicas:
        replica.publish(replica.adapter(1.0), version=1)
        assert torch.equal(replica.picture(), first)
    counted.none()


def test_an_adapter_of_too_large_a_rank_is_refused(replica: Replica) -> None:
    handle, answer = replica.begin(settings=lora_settings(600, 600, "q"))
    weights = replica.adapter(3.0, 600, "q")
    ipc.send(weights.items(), handle=handle, bucket_bytes=1 << 20, device=None, deadline=DEADLINE)
    assert "LoRA rank of 600 exceeds max allowed rank of 512" in refused(answer)


# --- requests over HTTP, while training goes on ---------------------------------------------------------

SEEDS = range(6)


@dataclass(frozen=True)
class Visitor:
    """Sends requests over HTTP to the first replica, many at a time."""

    one: Replica
    address: str
    threads: ThreadPoolExecutor

    def ask(self, seed: int) -> Future[httpx2.Response]:
        asked = {"prompt": PROMPTS[0], "size": "64x64", "seed": seed, "num_inference_steps": 16, "guidance_scale": 1.0}
        url = f"http://{self.address}/v1/images/generations"
        return self.threads.submit(httpx2.post, url, json=asked, timeout=SOON)

    def pictures(self) -> dict[int, str]:
        """The image of each seed with the weights of now."""
        return {seed: picture(self.ask(seed).result()) for seed in SEEDS}

    def queue(self) -> dict[int, Future[httpx2.Response]]:
        """Requests of which several are in flight."""
        asked = {seed: self.ask(seed) for seed in SEEDS}

        def several() -> bool:
            if all(request.done() for request in asked.values()):  # the engine was faster than a look at it
                asked.update({seed: self.ask(seed) for seed in SEEDS})
            return self.one.in_flight() > 2

        wait_for(several)
        return asked


def picture(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["data"][0]["b64_json"])


@pytest.fixture
def visitor(two_replicas: TwoReplicas) -> Iterator[Visitor]:
    with ThreadPoolExecutor(2 * len(SEEDS)) as threads:
        yield Visitor(two_replicas.replicas[0], two_replicas.stack.servers.server_addresses[0], threads)


def test_an_answer_over_http_has_one_version_while_weights_change(visitor: Visitor) -> None:
    import ray

    replica = visitor.one
    pictures = {}
    for version, strength in ((3, 1.5), (2, 2.0)):
        replica.publish(replica.adapter(strength), version)
        pictures[version] = visitor.pictures()
    assert not set(pictures[2].values()) & set(pictures[3].values())
    asked = [visitor.queue()]

    def weights() -> Iterator[tuple[str, Tensor]]:
        for number, weight in enumerate(replica.adapter(1.5).items()):
            if number == 5:
                assert replica.in_flight() == 0, "the engine has requests while its weights change"
                asked.append({seed: visitor.ask(seed) for seed in SEEDS})
                wait_for(lambda: ray.get(replica.server.requests_in_flight.remote()) >= len(SEEDS))
                assert replica.in_flight() == 0
            yield weight

    handle, answer = replica.begin(3)
    ipc.send(weights(), handle=handle, bucket_bytes=600, device=None, deadline=DEADLINE)
    ray.get(answer, timeout=SOON)
    for number, requests in enumerate(asked):
        for seed, request in requests.items():
            response = request.result()
            version = int(response.headers["X-Weights-Version"])
            assert picture(response) == pictures[version][seed], f"seed {seed} is not of version {version}"
            assert version == 3 or number == 0
    replica.publish(replica.adapter(1.0), 1)


def test_a_request_over_http_is_held_while_the_replica_sleeps(two_replicas: TwoReplicas, visitor: Visitor) -> None:
    import ray

    replica = visitor.one
    expected = visitor.pictures()
    early = visitor.queue()
    two_replicas.stack.weights.sleep_replicas()
    assert replica.in_flight() == 0, "the engine has requests while it sleeps"
    ray.get(replica.server.__ray_call__.remote(lambda own: setattr(own._http, "_deadline", 0.2)))
    answer = visitor.ask(0).result()
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
    assert "not admitted within 0.2 s (rollout.deadline_seconds), because this replica sleeps" in answer.text
    ray.get(
        replica.server.__ray_call__.remote(lambda own: setattr(own._http, "_deadline", own.config.deadline_seconds))
    )
    ray.get([asleep.server.wake_up.remote() for asleep in two_replicas.replicas], timeout=SOON)
    assert {seed: picture(request.result()) for seed, request in early.items()} == expected
