"""A running training stack with the example model, additional engines, and batches of prompts.

Ray must not be imported before it is started (docs/adr/0007), so modules are imported where they are used.
"""

import asyncio
import copy
import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results import ROOT

MODEL = ROOT / "examples" / "shapes-sd3"
STEPS = 4  # denoising steps: enough work for the engine, few enough for many repetitions


class DirectClient:
    """Client that sends requests to the servers in turn, without a router."""

    def __init__(self, servers: list[Any]) -> None:
        self._next = itertools.cycle(servers)

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Send a request; the signature is verl's client's."""
        return await next(self._next).generate.remote(request_id=request_id, **request)


@dataclass(frozen=True)
class Running:
    """A running stack with its settings."""

    config: Any
    stack: Any

    def add_engine(self, max_num_seqs: int) -> Any:
        """Start another engine with the same weights in its own process; returns its server."""
        from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniReplica

        servers = self.stack.servers.server_handles
        settings = copy.deepcopy(self.config).actor_rollout_ref
        settings.rollout.max_num_seqs = max_num_seqs
        rank = len(servers)
        replica = vLLMOmniReplica(rank, settings.rollout, settings.model, gpus_per_node=1)
        # A replica selects its workers by rank, and asks them only for their machine.
        workers = SimpleNamespace(workers=[self.stack.workers.workers[0]] * (rank + 1))
        asyncio.run(replica.init_hybrid(workers))
        servers.append(replica.servers[0])
        return servers[-1]

    def worker(self, servers: list[Any], pixels: int = 64) -> Any:
        """An agent-loop worker in this process for square images of `pixels`, without rewards."""
        from verl_omni.agent_loop import DiffusionAgentLoopWorker

        config = copy.deepcopy(self.config)
        config.actor_rollout_ref.rollout.pipeline.height = config.actor_rollout_ref.rollout.pipeline.width = pixels
        return DiffusionAgentLoopWorker(config, DirectClient(servers))

    def unscored(self) -> Any:
        """An agent loop like the stack's, without reward workers."""
        from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
        from verl_omni.workers.rollout.llm_server import DiffusionLLMServerClient

        client = self.stack.servers.get_client(client_cls=DiffusionLLMServerClient)
        return DiffusionAgentLoopManager.create(self.config, client, None, None)


@contextmanager
def running(*overrides: str) -> Iterator[Running]:
    """Start a stack, and stop it at the end of the block."""
    from verl_omni.trainer import startup
    from verl_omni.trainer.settings import configuration

    startup.prepare_environment(startup.accelerator_present())
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text('{"prompt": "a red circle"}\n')
        config = configuration.load(
            [
                f"data.train_files='{prompts}'",
                "data.max_prompt_length=24",
                "trainer.total_training_steps=1",
                f"trainer.default_local_dir='{folder}'",
                f"actor_rollout_ref.model.path='{MODEL}'",
                "actor_rollout_ref.rollout.pipeline.height=64",
                "actor_rollout_ref.rollout.pipeline.width=64",
                f"actor_rollout_ref.rollout.pipeline.num_inference_steps={STEPS}",
                "actor_rollout_ref.rollout.pipeline.max_sequence_length=24",
                "reward.scorer=brightness",
                "actor_rollout_ref.rollout.max_concurrent_requests=256",
                *overrides,
            ]
        )
        startup.fit_to_machine(config, startup.accelerator_present())
        stack = startup.start(config, lambda text: None)
        try:
            yield Running(config, stack)
        finally:
            stack.stop()


def batch(size: int, ground_truth: Any = "") -> Any:
    """Training prompts with the same seeds each time."""
    from verl_omni.trainer.generation.sample_generation import training_requests
    from verl_omni.trainer.generation.verl_batches import requests_to_verl

    rows = [
        {
            "raw_prompt": [{"role": "user", "content": "two red squares"}],
            "data_source": "shapes",
            "reward_model": {"ground_truth": ground_truth},
            "extra_info": {"index": row},
        }
        for row in range(size)
    ]
    return requests_to_verl(training_requests(rows, n=1, step=1, version=0, seed=0))


def timed_generation(worker: Any, size: int) -> tuple[float, Any]:
    """Seconds of a worker for a batch, and the samples."""
    rows = batch(size)
    began = time.perf_counter()
    samples = asyncio.run(worker.generate_sequences(rows))
    return time.perf_counter() - began, samples
