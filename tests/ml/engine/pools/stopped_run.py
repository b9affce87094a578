"""`main_diffusion` whose replicas all die when version 1 generates, with no place for others: `... name=value ...`.

Once the run waits, it gets SIGINT.
"""

import os
import signal
import sys
from typing import Any

from pool_run import VERSION_OF_LOSSES, kill  # in the same folder

from verl_omni.trainer import main_diffusion_v1, startup


def main() -> int:
    """Run the training job."""
    start = startup.start_actors

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        generate = stack.agent_loop.generate_sequences

        def refusing(rank: int) -> Any:
            raise ConnectionError("no node has room")

        def generating(prompts: Any) -> Any:
            if prompts.meta_info["global_steps"] == VERSION_OF_LOSSES:
                interrupt_when_it_waits(stack.weights.reports)
                stack.pool._launcher.start = refusing
                for replica in stack.weights.replicas:
                    kill(replica.server_handle, replica.server_handle.get_global_steps.remote)
            return generate(prompts)

        stack.agent_loop.generate_sequences = generating
        return stack

    startup.start_actors = starting
    return main_diffusion_v1.main()


def interrupt_when_it_waits(reports: Any) -> None:
    """Send this process SIGINT, once: the second one would end it at once."""
    waiting = reports.waiting

    def interrupting(serving: int, least: int) -> None:
        reports.waiting = waiting
        waiting(serving, least)
        os.kill(os.getpid(), signal.SIGINT)

    reports.waiting = interrupting


if __name__ == "__main__":
    sys.exit(main())
