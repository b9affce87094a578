"""What the tests of rewards share."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from tenacity import wait_none
from tensordict import TensorDict
from verl import DataProto

from tests.ml.reward_loop.stub_server import Serve, Server, start, stop
from verl_omni.reward_loop import http_exchange, judge_client, reward_server


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """Starts servers with their answers; clients do not pause between attempts."""
    started: list[tuple[Server, threading.Thread]] = []
    monkeypatch.setattr(judge_client, "PAUSES", wait_none())
    monkeypatch.setattr(reward_server, "SLEEP", lambda seconds: None)

    def made(*answers: Any) -> Server:
        started.append(start(*answers))
        return started[-1][0]

    yield made
    # Threads of connections that are kept would outlive their server.
    await http_exchange.disconnect()
    await asyncio.to_thread(http_exchange.disconnect_threads)
    for server in started:
        stop(*server)


@pytest.fixture
def settings() -> Callable[..., DictConfig]:
    """The part of the trainer's settings that a reward manager reads; arguments go into `reward`."""

    def made(
        *,
        output_type: str = "image",
        pixel_dtype: str = "uint8",
        val_pipeline: dict[str, Any] | None = None,
        **reward: Any,
    ) -> DictConfig:
        return OmegaConf.create(
            {
                "actor_rollout_ref": {
                    "rollout": {
                        "pipeline": {"output_type": output_type, "pixel_dtype": pixel_dtype},
                        "val_kwargs": {"pipeline": val_pipeline or {}},
                    }
                },
                "reward": {
                    "scorer": None,
                    "scorer_kwargs": {},
                    "reward_functions": {},
                    "custom_reward_function": {"path": None, "name": "compute_score"},
                    "reward_model": {"enable": False},
                    **reward,
                },
            }
        )

    return made


@pytest.fixture
def sample() -> Callable[..., DataProto]:
    """One row, as the agent loop sends it."""

    def made(response: torch.Tensor | None = None, *, validate: bool = False, **columns: Any) -> DataProto:
        picture = torch.full((3, 8, 8), 51, dtype=torch.uint8) if response is None else response
        row = {"data_source": "brightness", "reward_model": {"ground_truth": "dark"}, "extra_info": {"index": 7}}
        others = {}
        for name, value in {**row, **columns}.items():
            others[name] = np.empty(1, dtype=object)
            others[name][0] = value
        batch = TensorDict({"responses": picture.unsqueeze(0)}, batch_size=1)
        return DataProto(batch=batch, non_tensor_batch=others, meta_info={"validate": validate})

    return made
