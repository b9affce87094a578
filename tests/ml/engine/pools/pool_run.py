"""`main_diffusion` that loses standalone replicas: `python pool_run.py name=value ...`.

Synchronous: the worker of replica 1 dies before version 1, and the server of replica 2 before version 1 generates.
Version 2 is sent when two others have started in their place. Asynchronous: all die before version 1 generates.
"""

import contextlib
import sys
import threading
from typing import Any

from verl_omni.trainer import main_diffusion, main_diffusion_v1, startup
from verl_omni.trainer.settings.async_settings import batches_ahead

VERSION_OF_LOSSES = 1


def main() -> int:
    """Run the training job."""
    start = startup.start_actors

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        update = stack.weights.update_weights
        generate = stack.agent_loop.generate_sequences
        join = stack.weights.join
        started = threading.Semaphore(0)

        def updating(global_steps: int) -> Any:
            if global_steps == VERSION_OF_LOSSES:
                (worker,) = stack.weights.replicas[1].workers
                kill(worker, worker.ready.remote)
            if global_steps == VERSION_OF_LOSSES + 1:
                assert all(started.acquire(timeout=120) for _ in range(2)), "no replica was started"
            return update(global_steps=global_steps)

        def joining(replica: Any, times: Any) -> None:
            join(replica, times)
            started.release()

        def generating(prompts: Any) -> Any:
            lost = prompts.meta_info["global_steps"] == VERSION_OF_LOSSES
            if lost and batches_ahead(arguments[0]):
                for replica in stack.weights.replicas:
                    kill(replica.server_handle, replica.server_handle.get_global_steps.remote)
            elif lost:
                server = stack.weights.replicas[-1].server_handle
                kill(server, server.get_global_steps.remote)
            return generate(prompts)

        stack.agent_loop.generate_sequences = generating
        if not batches_ahead(arguments[0]):
            stack.weights.update_weights = updating
            stack.weights.join = joining
        return stack

    startup.start_actors = starting
    # The second entry point sets what is not given.
    return main_diffusion.main() if "trainer.use_v1=true" in sys.argv else main_diffusion_v1.main()


def kill(actor: Any, ask: Any) -> None:
    """Kill an actor, and wait until it is gone."""
    import ray

    ray.kill(actor)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(ask(), timeout=60)


if __name__ == "__main__":
    sys.exit(main())
