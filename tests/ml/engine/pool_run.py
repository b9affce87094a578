"""`main_diffusion` in which the worker of replica 1 dies before version 2: `python pool_run.py name=value ...`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from verl_omni.trainer import main_diffusion, startup

FIRST_VERSION_WITHOUT_REPLICA_1 = 2


def main() -> int:
    """Run the training job."""
    start = startup.start_actors

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        update = stack.weights.update_weights

        def killing(global_steps: int) -> Any:
            if global_steps == FIRST_VERSION_WITHOUT_REPLICA_1:
                import ray

                (worker,) = stack.weights.replicas[1].workers
                ray.kill(worker)
                with contextlib.suppress(ray.exceptions.RayActorError):
                    while True:  # until it is gone
                        ray.get(worker.ready.remote(), timeout=60)
            return update(global_steps=global_steps)

        stack.weights.update_weights = killing
        return stack

    startup.start_actors = starting
    return main_diffusion.main()


if __name__ == "__main__":
    sys.exit(main())
