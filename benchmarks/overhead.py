"""What the agent loop adds to a picture, over the engine called in its own process.

    python benchmarks/overhead.py [--repeats N] [--out FILE]

The same requests, all of them in flight at once, by turns: `AsyncOmni.generate` inside the server's process, with
requests that are ready and outputs that nobody takes; and the whole way from rows to a `DataProto` in the driver
(tokenize, seeds, Ray to the worker, the router and the server, the output, and back). Nothing is scored. The first turn
is not counted. Beside the seconds, the processor's time of the server's and of the agent loop's process, which other
work on the machine changes less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from results import arguments, spread, table, write
from stack import Direct, Running, batch, drawn, running

PICTURES = 64
AT_ONCE = 8


class Kept(Direct):
    """Keeps the requests that pass."""

    def __init__(self, servers: list[Any]) -> None:
        super().__init__(servers)
        self.requests: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **request: Any) -> Any:
        """As verl's client."""
        self.requests.append(request)
        return await super().generate(request_id, **request)


def raw_seconds(server: Any, requests: list[dict[str, Any]]) -> float:
    """In the server's process, in a thread beside its loop: seconds to draw all of `requests`."""
    import asyncio
    from uuid import uuid4

    from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
    from verl_omni.workers.rollout.vllm_rollout.server.requests import RolloutRequest

    ready = [
        server._mode.engine_request(
            RolloutRequest(prompt_ids=request["prompt_ids"]), request["sampling_params"], None, server.config,
            server.engine.default_sampling_params_list,
        )
        for request in requests
    ]  # fmt: skip

    async def draw() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(last_output(server.engine.generate(request_id=uuid4().hex, **each)) for each in ready))
        return time.perf_counter() - began

    return asyncio.run_coroutine_threadsafe(draw(), server._server_task.get_loop()).result()


def by_loop(loop: Any) -> float:
    """Seconds of the same pictures by the agent loop."""
    rows = batch(PICTURES)
    began = time.perf_counter()
    loop.generate_sequences(rows)
    return time.perf_counter() - began


def taken(draw: Callable[[], float], actors: list[Any]) -> list[float]:
    """Milliseconds a picture: of the clock, and of each actor's processor."""
    import ray

    def processor() -> list[float]:
        return ray.get([actor.__ray_call__.remote(lambda own: time.process_time()) for actor in actors])

    before = processor()
    seconds = draw()
    spent = [after - first for after, first in zip(processor(), before, strict=True)]
    return [each * 1e3 / PICTURES for each in (seconds, *spent)]


def measure(on: Running, repeats: int) -> dict[str, Any]:
    """Milliseconds a picture that the agent loop adds, turn by turn, and what that is of the engine's own."""
    import ray

    (server,) = on.stack.servers.server_handles
    worker = on.worker([server])
    worker.server_manager = kept = Kept([server])
    drawn(worker, PICTURES)
    loop = on.unscored()
    actors = [server, *loop.agent_loop_workers]

    def by_engine() -> float:
        return float(ray.get(server.__ray_call__.remote(raw_seconds, kept.requests)))

    turns = [
        (taken(by_engine, actors), taken(lambda: by_loop(loop), actors)) for _ in range(repeats + 1)
    ][1:]  # fmt: skip
    return {
        **spread("added_ms_a_picture", [way[0] - raw[0] for raw, way in turns]),
        **spread("added_share", [way[0] / raw[0] - 1 for raw, way in turns]),
        **spread("raw_ms_a_picture", [raw[0] for raw, _ in turns]),
        **spread("server_processor_ms_added", [way[1] - raw[1] for raw, way in turns]),
        **spread("worker_processor_ms", [way[2] for _, way in turns]),
    }


def main() -> int:
    """Measure and print."""
    chosen = arguments(__doc__, "overhead", repeats=9).parse_args()
    with running(f"actor_rollout_ref.rollout.max_num_seqs={AT_ONCE}") as on:
        rows = [measure(on, chosen.repeats)]
    write(chosen.out, rows, pictures=PICTURES, max_num_seqs=AT_ONCE)
    table(rows, [name for name in rows[0] if not name.endswith("_all")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
