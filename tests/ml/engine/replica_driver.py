"""A stand-in for the trainer's end of a weight update."""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.weight_sync import ipc, names

LAYER = "transformer.transformer_blocks.{block}.attn.to_{part}"
RANK = 4
WIDTH = 32
DEADLINE = 10.0  # seconds that either end of a transfer waits for the other
SOON = 60.0  # deadline of every answer, in seconds
TOKEN = secrets.token_hex(4)


def lora_settings(rank: int = RANK, alpha: int = RANK, parts: str = "qk") -> dict[str, Any]:
    """The peft settings of an adapter of these projections of the attention."""
    targets = [f"to_{part}" for part in parts]
    return {"r": rank, "lora_alpha": alpha, "target_modules": targets, "peft_type": "LORA", "bias": "none"}


def announced(
    update: str, deadline: float, *, job: str = "0", rank: int = 0, adapter: Any = None, version: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The handle to send an update on, and what the worker of a replica is told about it: full weights or an adapter.

    Args:
        update: unique on this host.
        adapter: its peft settings.
    """
    told = {
        "peft_config": adapter,
        "base_sync_done": adapter is not None,
        "use_shm": True,
        "zmq_update_id": update,
        "deadline": deadline,
        "global_steps": version,
    }
    return names.make_update_zmq_handle(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{rank}-rank-0.sock", update), told


@dataclass
class Replica:
    """A server of the stack, and the trainer's end of a weight update to it."""

    server: Any
    rank: int
    job: str
    updates: int = 0
    asked: int = 0
    token: str = TOKEN

    @staticmethod
    def adapter(strength: float, rank: int = RANK, parts: str = "qk") -> dict[str, Tensor]:
        """An adapter of all queries and keys, or other projections; another strength gives other images."""
        generator = torch.Generator().manual_seed(3)
        tensors: dict[str, Tensor] = {}
        for block in range(2):
            for part in parts:
                module = LAYER.format(block=block, part=part)
                tensors[f"{module}.lora_A.weight"] = torch.randn(rank, WIDTH, generator=generator)
                tensors[f"{module}.lora_B.weight"] = strength * torch.randn(WIDTH, rank, generator=generator)
        return tensors

    def begin(self, version: int | None = None, settings: dict[str, Any] | None = None) -> tuple[str, Any]:
        """Announce an adapter to the worker. Returns the handle to send it on, and the reference of the answer."""
        self.updates += 1
        # Unique on this host: the Ray of another run also counts its jobs from one.
        update = f"{names.make_update_zmq_id(0, self.updates)}-{TOKEN}"
        adapter = settings or lora_settings()
        handle, told = announced(update, DEADLINE, job=self.job, rank=self.rank, adapter=adapter, version=version)
        return handle, self.server.collective_rpc.remote("update_weights_from_ipc", kwargs=told)

    def publish(
        self,
        weights: dict[str, Tensor],
        version: int,
        bucket_bytes: int = 1 << 20,
        settings: dict[str, Any] | None = None,
    ) -> Any:
        """Send a valid update; the worker's answer."""
        import ray

        handle, answer = self.begin(version, settings)
        ipc.send(weights.items(), handle=handle, bucket_bytes=bucket_bytes, device=None, deadline=DEADLINE)
        report = ray.get(answer, timeout=SOON)[0]
        ray.get(self.server.set_global_steps.remote(version), timeout=SOON)
        return report

    def draw(self, seed: int) -> Any:
        """The reference of a requested sample."""
        self.asked += 1
        return self.server.generate.remote(request_id=f"draw-{self.asked}", **self.request(seed))

    @staticmethod
    def request(seed: int) -> dict[str, Any]:
        """The arguments of a request, without its id."""
        params = {
            "height": 64,
            "width": 64,
            "num_inference_steps": 4,
            "guidance_scale": 1.0,
            "max_sequence_length": 16,
            "seed": seed,
            "logprobs": False,
        }
        return {"prompt_ids": [2, 5, 7], "sampling_params": params}

    def picture(self, seed: int = 5) -> Tensor:
        import ray

        return ray.get(self.draw(seed), timeout=SOON).diffusion_output  # type: ignore[no-any-return]

    def pid(self) -> int:
        """The PID of the server; without an accelerator, the engine's worker is a thread of it."""
        import ray

        return ray.get(self.server.__ray_call__.remote(lambda own: os.getpid()), timeout=SOON)  # type: ignore[no-any-return]

    def make_busy(self) -> list[Any]:
        """Requests of which more than ten are in flight. They take seconds, so that even a late poll sees them."""
        asked = [self.draw(seed) for seed in range(200)]
        wait_for(lambda: self.in_flight() > 10)
        return asked

    def in_flight(self) -> int:
        import ray

        return ray.get(self.server.__ray_call__.remote(lambda own: len(own.engine.request_states)), timeout=SOON)  # type: ignore[no-any-return]


def ending_at_the_sixth(adapter: dict[str, Tensor], end: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an adapter; before the sixth, `end` kills one of the two processes."""
    for number, (name, tensor) in enumerate(adapter.items()):
        if number == 5:
            end()
        yield name, tensor


def replicas_of(stack: Any) -> list[Replica]:
    """The servers of a stack with a tiny Stable Diffusion 3 and LoRA of rank 4, each with an adapter of version 1."""
    import ray

    job = ray.get_runtime_context().get_job_id()
    replicas = [Replica(server, rank, job) for rank, server in enumerate(stack.servers.server_handles)]
    for replica in replicas:
        replica.publish(replica.adapter(1.0), version=1)
    return replicas


def wait_for(happened: Callable[[], bool]) -> None:
    """Poll until a condition is true; fail at the deadline."""
    end = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < end, "it did not happen"


PROMPTS = ["a red circle", "a blue square on the left", "two cat photo", "a green tree"]
SCORER = """
import time
def compute_score(data_source, solution_image, ground_truth, extra_info):
    if ground_truth == "raise":
        raise OSError("the scorer's disk is gone")
    if ground_truth == "slow":
        time.sleep(3)
    return float(solution_image.float().mean()) / 255
"""


@dataclass
class TwoReplicas:
    """A stack of two replicas whose scorer behaves as the ground truth of a row tells it."""

    config: Any
    stack: Any
    replicas: list[Replica]
    rows: Callable[[Sequence[str]], list[dict[str, Any]]]

    def score(self, truths: Sequence[str], version: int | None = None) -> Any:
        """Generate and score one sample for each ground truth."""
        from verl_omni.trainer.generation import sample_generation

        rows = self.rows(PROMPTS[: len(truths)])
        for row, truth in zip(rows, truths, strict=True):
            row["reward_model"] = {"ground_truth": truth}
        prompts = sample_generation.evaluation_requests(rows, seed=7, version=version)
        return sample_generation.generate_scored(self.config, self.stack.agent_loop, prompts)
