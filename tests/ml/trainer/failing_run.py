"""Run by test_failed_run.py: a run that fails in a process of a real Ray. Arguments: the run folder, a case."""

import contextlib
import sys
from typing import Any

from verl_omni.trainer import main_diffusion, startup

startup.prepare_environment(has_accelerator=False)

import ray  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from verl_omni.trainer.operator_reporter import NullReporter  # noqa: E402

PROMPT = "a red circle"


@ray.remote
def score(color: str) -> Any:
    import torch

    from verl_omni.reward_loop.rewards import get_scorer

    return get_scorer("color")("test", torch.zeros(3, 8, 8, dtype=torch.uint8), PROMPT, {}, color=color)


@ray.remote
class AgentLoop:
    """A worker whose reward worker raises."""

    async def generate(self) -> None:
        from verl_omni.agent_loop.diffusion_agent_loop import run_rows

        async def run(row: int) -> Any:
            return await score.remote("mauve")

        await run_rows(1, run, lambda row: f"row {row} of 1 at weight version 4 (prompt {PROMPT!r})")


@ray.remote
class BrokenAtStart:
    """A worker that raises in its constructor."""

    def __init__(self) -> None:
        raise ValueError("no module 'mine'")

    def generate(self) -> None:
        pass


def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
    ray.init(address="local", num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1")
    resources.callback(ray.shutdown)
    worker = {"scorer": AgentLoop, "constructor": BrokenAtStart}[sys.argv[2]].remote()
    ray.get(worker.generate.remote())


settings = {"default_local_dir": sys.argv[1], "resume_mode": "auto", "total_training_steps": 3, "output": {"url": None}}
config = OmegaConf.create({"trainer": settings})
sys.exit(main_diffusion.run_training(config, NullReporter(), train))
