"""`main_diffusion` that loses its judge: `python judge_run.py name=value ...`.

The judge's server dies before it scores the samples of the second step.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.ml.engine.pool_run import kill
from verl_omni.trainer import main_diffusion, startup

VERSION_OF_LOSS = 1


def main() -> int:
    """Run the training job."""
    start = startup.start_actors

    def starting(*arguments: Any) -> startup.Stack:
        stack = start(*arguments)
        generate = stack.agent_loop.generate_sequences

        def generating(prompts: Any) -> Any:
            if prompts.meta_info["global_steps"] == VERSION_OF_LOSS:
                (replica,) = stack.rewards.judge.replicas
                kill(replica.server_handle, replica.server_handle.get_master_address.remote)
            return generate(prompts)

        stack.agent_loop.generate_sequences = generating
        return stack

    startup.start_actors = starting
    return main_diffusion.main()


if __name__ == "__main__":
    sys.exit(main())
