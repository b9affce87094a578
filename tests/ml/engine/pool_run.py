"""`main_diffusion` that loses two standalone replicas: `python pool_run.py name=value ...`.

The worker of replica 1 dies before version 1, and the server of replica 2 before version 1 generates. Version 2 is sent
when two others have started in their place.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from verl_omni.trainer import main_diffusion, startup

VERSION_OF_LOSSES = 1


def main() -> int:
    """Run the training job."""
    start = startup.start_actors

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        update, generate = stack.weights.update_weights, stack.agent_loop.generate_sequences
        join, started = stack.weights.join, threading.Semaphore(0)

        def updating(global_steps: int) -> Any:
            if global_steps == VERSION_OF_LOSSES:
                (worker,) = stack.weights.replicas[1].workers
                kill(worker, worker.ready.remote)
            if global_steps == VERSION_OF_LOSSES + 1:
                assert all(started.acquire(timeout=120) for _ in range(2)), "no replica was started"
            return update(global_steps=global_steps)

        def joining(replica: Any) -> None:
            join(replica)
            started.release()

        def generating(prompts: Any) -> Any:
            if prompts.meta_info["global_steps"] == VERSION_OF_LOSSES:
                server = stack.weights.replicas[-1].server_handle
                kill(server, server.get_global_steps.remote)
            return generate(prompts)

        stack.weights.update_weights, stack.agent_loop.generate_sequences = updating, generating
        stack.weights.join = joining
        return stack

    startup.start_actors = starting
    return main_diffusion.main()


def kill(actor: Any, ask: Any) -> None:
    """Kill an actor, and wait until it is gone."""
    import ray

    ray.kill(actor)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(ask(), timeout=60)


if __name__ == "__main__":
    sys.exit(main())
