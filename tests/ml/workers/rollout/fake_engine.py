"""A server without Ray whose engine is a fake that records its calls in order."""

import argparse
import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PARAMS: dict[str, Any] = {"height": 64}


class Engine:
    """AsyncOmni's control calls; requests end when they are aborted, or when the test ends them."""

    def __init__(self, stages: int = 1, status: str = "SUCCESS", answers: int | None = None) -> None:
        self.default_sampling_params_list = [None] * stages
        self.request_states: dict[str, Any] = {}
        self.told: list[Any] = []
        self.fault: Exception | None = None
        self.ended: Exception | None = None
        self._admitting = 0
        self._open = asyncio.Event()
        self._open.set()
        self._acks = [SimpleNamespace(status=status, error_msg="no memory")] * (stages if answers is None else answers)

    async def generate(self, *, request_id: str, priority: int = 0, **arguments: Any) -> Any:
        await self._open.wait()
        if self.fault is not None:
            raise self.fault
        state = SimpleNamespace(external_request_id=request_id, queue=asyncio.Queue(), priority=priority)
        self.request_states[request_id] = state
        try:
            yield await state.queue.get()
        finally:
            del self.request_states[request_id]

    async def check_health(self) -> None:
        if self.ended is not None:
            raise self.ended

    async def abort(self, ids: str | list[str]) -> None:
        self.told.append(("abort", ids))
        for name in [ids] if isinstance(ids, str) else ids:
            self.request_states[name].queue.put_nowait(
                SimpleNamespace(outputs=[SimpleNamespace(finish_reason="abort")])
            )

    async def pause_generation(self, **how: Any) -> None:
        self.told.append("pause")
        self._open.clear()

    async def resume_generation(self) -> None:
        self.told.append("resume")
        self._open.set()

    async def sleep(self, level: int) -> list[Any]:
        self.told.append(("sleep", level))
        return self._acks

    async def wake_up(self, tags: list[str]) -> list[Any]:
        self.told.append(("wake_up", tags))
        return self._acks


def server_with(engine: Any, mode: str = "HYBRID") -> Any:
    """A replica's server, awake and open, with an engine in it."""
    from verl.workers.rollout.replica import RolloutMode

    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniHttpServer

    server: Any = object.__new__(vLLMOmniHttpServer)
    server.engine = engine
    server._mode = DiffusionMode()
    server.config = SimpleNamespace(free_cache_engine=True, step_execution=False, deadline_seconds=30.0)
    server.model_config = SimpleNamespace(lora_rank=0, lora={})
    server._post_init("")
    server.global_steps = 3
    server.replica_rank = 1
    server._submission_paused = False
    server._rejecting = False
    server._admitting = 0
    server._resume_event = asyncio.Event()
    server._resume_event.set()
    server.node_rank = 0
    server.rollout_mode = RolloutMode[mode]
    return server


def command_line(model: Path, *options: str) -> argparse.Namespace:
    """vLLM-Omni's command line that serves a model, with its defaults."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm_omni.entrypoints.cli import serve

    parser = FlexibleArgumentParser()
    kinds = parser.add_subparsers(dest="subparser")
    for command in serve.cmd_init():
        command.subparser_init(kinds)
    args = parser.parse_args(["serve", str(model), *options])
    args.model = args.model_tag
    return args


def asking(server: Any, name: str) -> asyncio.Task[Any]:
    return asyncio.create_task(server.generate([1], PARAMS, name))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
