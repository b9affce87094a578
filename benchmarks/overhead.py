"""Latency and CPU time that the agent loop adds to the engine.

    python benchmarks/overhead.py [--repeats N] [--out FILE]

Two variants take turns with the same requests, all in flight at once: `AsyncOmni.generate` inside the server process,
with prepared requests and discarded outputs; and the whole path from rows to a `DataProto` in the driver (tokenizing,
seeds, Ray to the worker, the router and the server, the output, and back). No rewards are computed, and the first turn
is not counted. Besides wall-clock time, the CPU time of the server and agent-loop processes is measured, which other
work on the machine affects less.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from results import arguments, spread, table, write
from stack import DirectClient, Running, batch, running, timed_generation

PICTURES = 64
BATCH_SIZE = 8


class RecordingClient(DirectClient):
    """Client that records its requests."""

    def __init__(self, servers: list[Any]) -> None:
        super().__init__(servers)
        self.requests: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Send a request; the signature is verl's client's."""
        self.requests.append(request)
        return await super().generate(request_id, **request)


def raw_seconds(server: Any, requests: list[dict[str, Any]]) -> float:
    """Seconds to generate all of `requests`; runs in the server process, in a thread besides its event loop."""
    import asyncio
    from uuid import uuid4

    from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
    from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

    ready = [
        server._mode.engine_request(
            RolloutRequest(prompt_ids=request["prompt_ids"]),
            request["sampling_params"],
            None,
            server.config,
            server.engine.default_sampling_params_list,
        )
        for request in requests
    ]

    async def draw() -> float:
        began = time.perf_counter()
        await asyncio.gather(
            *(last_output(server.engine.generate(request_id=uuid4().hex, **request)) for request in ready)
        )
        return time.perf_counter() - began

    return asyncio.run_coroutine_threadsafe(draw(), server._server_task.get_loop()).result()


def loop_seconds(loop: Any) -> float:
    """Seconds of the agent loop for the same images."""
    rows = batch(PICTURES)
    began = time.perf_counter()
    loop.generate_sequences(rows)
    return time.perf_counter() - began


def measure_turn(draw: Callable[[], float], actors: list[Any]) -> list[float]:
    """Milliseconds per image: wall-clock time, and CPU time of each actor."""
    import ray

    def cpu_seconds() -> list[float]:
        return ray.get([actor.__ray_call__.remote(lambda own: time.process_time()) for actor in actors])

    before = cpu_seconds()
    seconds = draw()
    spent = [after - first for after, first in zip(cpu_seconds(), before, strict=True)]
    return [value * 1e3 / PICTURES for value in (seconds, *spent)]


def measure(on: Running, repeats: int) -> dict[str, Any]:
    """Milliseconds per image that the agent loop adds, and their share of the engine's time, turn by turn."""
    import ray

    (server,) = on.stack.servers.server_handles
    worker = on.worker([server])
    worker.server_manager = recorder = RecordingClient([server])
    timed_generation(worker, PICTURES)
    loop = on.unscored()
    actors = [server, *loop.agent_loop_workers]

    def by_engine() -> float:
        return float(ray.get(server.__ray_call__.remote(raw_seconds, recorder.requests)))

    turns = [
        (measure_turn(by_engine, actors), measure_turn(lambda: loop_seconds(loop), actors)) for _ in range(repeats + 1)
    ][1:]
    return {
        **spread("added_ms_a_picture", [way[0] - raw[0] for raw, way in turns]),
        **spread("added_share", [way[0] / raw[0] - 1 for raw, way in turns]),
        **spread("raw_ms_a_picture", [raw[0] for raw, _ in turns]),
        **spread("server_processor_ms_added", [way[1] - raw[1] for raw, way in turns]),
        **spread("worker_processor_ms", [way[2] for _, way in turns]),
    }


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "overhead", repeats=9).parse_args()
    with running(f"actor_rollout_ref.rollout.max_num_seqs={BATCH_SIZE}") as on:
        rows = [measure(on, chosen.repeats)]
    write(chosen.out, rows, pictures=PICTURES, max_num_seqs=BATCH_SIZE)
    table(rows, [name for name in rows[0] if not name.endswith("_all")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
