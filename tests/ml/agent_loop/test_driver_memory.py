"""Memory of the driver in a training step whose samples stay in the object store."""

import asyncio
import ctypes
import gc
import itertools
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl import DataProto
from verl.utils.config import omega_conf_to_dataclass

from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
from verl_omni.samples import SampleRequests, TrainingBatch
from verl_omni.trainer.generation.sample_generation import generate_scored, training_requests
from verl_omni.trainer.generation.verl_batches import requests_to_verl, update_to_verl
from verl_omni.workers.algorithms.base import training_algorithm

pytestmark = pytest.mark.slow  # generates thousands of samples

SAMPLES_PER_PROMPT = 8
WORKERS = 2
STEPS = 4
FEW = 64
MANY = 4096
A_SAMPLE = 4096  # bytes of the driver
STATUS = Path("/proc/self/status")
PEAK_OF_RSS = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Reference:
    """As large as an id of Ray's object store."""

    id: bytes


NUMBERS = itertools.count()


def put(tensors: dict[str, torch.Tensor]) -> Reference:
    return Reference(next(NUMBERS).to_bytes(28, "big"))


# Recorded tensors of a Stable Diffusion 3 sample at 128 pixels.
RECORDED = {
    "all_latents": torch.zeros(1).expand(STEPS + 1, 16, 16, 16),
    "all_timesteps": torch.ones(STEPS),
    "all_sigmas": torch.ones(STEPS + 1),
    "sigma_max": torch.ones(1),
    "prompt_embeds": torch.zeros(1).expand(6, 64),
    "pooled_prompt_embeds": torch.zeros(16),
    "negative_prompt_embeds": torch.zeros(1).expand(6, 64),
    "negative_pooled_prompt_embeds": torch.zeros(16),
}


def prompts_of(samples: int) -> SampleRequests:
    rows = [
        {
            "raw_prompt": [{"role": "user", "content": f"{number} red circles"}],
            "data_source": "shapes",
            "reward_model": {"ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number in range(samples // SAMPLES_PER_PROMPT)
    ]
    return training_requests(
        rows, n=SAMPLES_PER_PROMPT, step=1, version=0, seed=0, keeps_media=False, stores_tensors=True
    )


@pytest.fixture
def parts_of(worker: Any, engine: Any, rewards: Any) -> Callable[[int], tuple[Any, list[bytes]]]:
    """The settings, and what each agent-loop worker sends to the driver, pickled."""

    def made(samples: int) -> tuple[Any, list[bytes]]:
        loop = worker(
            "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
            "actor_rollout_ref.model.lora_rank=4",
            f"actor_rollout_ref.rollout.agent.num_workers={WORKERS}",
            engine=engine(**RECORDED),
            rewards=[rewards()],
        )
        loop.put = put

        async def generate() -> list[bytes]:
            chunks = requests_to_verl(prompts_of(samples)).chunk(WORKERS)
            return [pickle.dumps(await loop.generate_sequences(chunk)) for chunk in chunks]

        return loop.config, asyncio.run(generate())

    return made


def step_of_the_driver(config: Any, samples: int, parts: list[bytes]) -> DataProto:
    """The driver's part of a training step: prompts, answers of the workers, advantages, request of the update."""

    class Worker:
        def __init__(self, answer: bytes) -> None:
            self.generate_sequences = SimpleNamespace(remote=self._remote)
            self.answer = answer

        async def _remote(self, chunk: DataProto) -> Any:
            return pickle.loads(self.answer)

    manager = DiffusionAgentLoopManager(config, None)
    manager.agent_loop_workers = [Worker(part) for part in parts]
    scored = generate_scored(config, manager, prompts_of(samples))
    loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)
    batch = training_algorithm("flow_grpo").training_batch(scored, loss, config, 1)
    request = update_to_verl(TrainingBatch(batch, scored.stored, {"step": 1}))
    assert len(request) == len(scored.stored) == samples
    return request


def traced_peak(step: Callable[[], Any]) -> int:
    """Bytes of Python objects and numpy arrays at the peak of a step, without torch tensors."""
    gc.collect()
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident_growth(step: Callable[[], Any]) -> int:
    """Bytes by which a step raises this process above the memory that it had."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the step would fill memory that was freed before
    before = _status("VmRSS")
    PEAK_OF_RSS.write_text("5")  # proc(5): the peak starts again from what is resident
    kept = step()
    del kept
    return _status("VmHWM") - before


def _status(name: str) -> int:
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def test_the_driver_needs_a_few_kilobytes_for_each_further_sample(parts_of: Any) -> None:
    """tracemalloc does not see the tensors of torch; the resident memory has them, and the allocators' reserves."""
    steps = {}
    for samples in (FEW, MANY):
        config, parts = parts_of(samples)
        steps[samples] = partial(step_of_the_driver, config, samples, parts)
    steps[FEW]()  # imports and caches
    resident = {samples: resident_growth(step) for samples, step in steps.items()}
    traced = {samples: traced_peak(step) for samples, step in steps.items()}
    assert (traced[MANY] - traced[FEW]) / (MANY - FEW) < A_SAMPLE, traced
    assert (resident[MANY] - resident[FEW]) / (MANY - FEW) < A_SAMPLE, resident
