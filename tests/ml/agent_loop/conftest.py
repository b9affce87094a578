"""Fixtures of the agent-loop tests: settings of the example model, fake engine, fake reward worker."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

from tests.ml import smallest_job
from verl_omni.agent_loop import DiffusionAgentLoopWorker
from verl_omni.trainer.settings import process_counts
from verl_omni.workers.rollout.replica import DiffusionOutput

MODEL = Path(__file__).parents[3] / "examples" / "shapes-sd3"


class Engine:
    """Answers each request with a sample whose pixels are its number modulo 256, and keeps what it was asked."""

    def __init__(self, **fields: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fields = fields

    async def generate(self, request_id: str, **request: Any) -> DiffusionOutput:
        number = len(self.asked)
        self.asked.append(request)
        await asyncio.sleep(0)
        return DiffusionOutput(
            diffusion_output=torch.full((3, 2, 2), number % 256, dtype=torch.uint8),
            log_probs=torch.zeros(4) if request["sampling_params"]["logprobs"] else None,
            stop_reason="completed",
            extra_fields={"global_steps": request["sampling_params"].get("global_steps"), **self.fields},
        )


class Rewards:
    """A reward worker's handle; scores by the first pixel and keeps what it was given."""

    def __init__(self, info: Callable[[int], dict[str, Any]] = lambda pixel: {"acc": float(pixel)}) -> None:
        self.given: list[DataProto] = []
        self.info = info
        self.compute_score = self

    async def remote(self, data: DataProto) -> dict[str, Any]:
        self.given.append(data)
        pixel = int(data.batch["responses"].flatten()[0])
        return {"reward_score": float(pixel), "reward_extra_info": self.info(pixel)}


@pytest.fixture
def engine() -> type[Engine]:
    return Engine


@pytest.fixture
def rewards() -> type[Rewards]:
    return Rewards


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text('{"prompt": "a red circle"}\n')
    return path


@pytest.fixture
def worker(prompts_file: Path) -> Iterator[Callable[..., Any]]:
    """Makes a worker with further settings; loops that it registers are forgotten after the test."""
    registered = dict(_agent_loop_registry)

    def made(*overrides: str, engine: Any = None, rewards: list[Any] | None = None) -> Any:
        config = smallest_job.load(
            f"data.train_files='{prompts_file}'",
            "data.max_prompt_length=8",
            f"actor_rollout_ref.model.path='{MODEL}'",
            "actor_rollout_ref.rollout.pipeline.max_sequence_length=6",
            *overrides,
        )
        process_counts.fill_in(config, cpus=2)
        return DiffusionAgentLoopWorker(config, engine or Engine(), None, rewards)

    yield made
    _agent_loop_registry.clear()
    _agent_loop_registry.update(registered)


@pytest.fixture
def batch() -> Callable[..., DataProto]:
    """Makes a batch with a row for each prompt and further columns."""

    def made(prompts: list[str], meta: dict[str, Any] | None = None, **columns: list[Any]) -> DataProto:
        rows = {"raw_prompt": [[{"role": "user", "content": prompt}] for prompt in prompts], **columns}
        return DataProto(
            batch=None,
            non_tensor_batch={name: objects(column) for name, column in rows.items()},
            meta_info={"global_steps": 3} if meta is None else meta,
        )

    return made


def objects(values: list[Any]) -> np.ndarray:
    column: np.ndarray = np.empty(len(values), dtype=object)
    column[:] = values
    return column
