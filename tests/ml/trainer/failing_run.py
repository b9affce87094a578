"""Run by test_failed_run.py: runs that fail in a process of a real Ray, each with its own Ray.

Arguments: the folder that their folders are in, and cases. After each run it prints its exit code.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from verl_omni.trainer import main_diffusion, startup

startup.prepare_environment(has_accelerator=False)

import ray  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from verl_omni.trainer.run.operator_reporter import NullReporter  # noqa: E402

PROMPT = "a red circle"
RANKS = 2


@ray.remote
def score(color: str) -> Any:
    import torch

    from verl_omni.reward_loop.rewards import get_scorer

    return get_scorer("color")("test", torch.zeros(3, 8, 8, dtype=torch.uint8), PROMPT, {}, color=color)


@ray.remote
class AgentLoop:
    """A worker whose reward worker raises."""

    async def generate(self) -> None:
        from verl_omni.agent_loop.rows import run_rows

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


def update_on_ranks(case: str, folder: str) -> None:
    """A collective of two ranks of the trainer, of which the second raises or is killed before it takes part."""
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    from verl_omni.workers.engine_workers import DiffusionActorRolloutWorker

    class Rank(DiffusionActorRolloutWorker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def update(self) -> None:
            import torch

            self._mesh()
            torch.distributed.barrier()
            Path(folder, f"rank-{self.rank}").write_text(str(os.getpid()))
            if self.rank == 1:
                if case == "killed rank":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("rank 1 has no memory left")
            torch.distributed.barrier()

    # Rank 0 would wait for longer than the test.
    actor = {"fsdp_config": {"ulysses_sequence_parallel_size": 1, "fsdp_size": -1}}
    settings = OmegaConf.create({"nccl_timeout": 900, "actor": actor})
    pool = RayResourcePool(process_on_nodes=[RANKS], use_gpu=False, name_prefix="ranks", max_colocate_count=1)
    group = RayClassWithInitArgs(cls=ray.remote(Rank), config=settings)
    RayWorkerGroup(resource_pool=pool, ray_cls_with_init=group, device_name="cpu").update()


def fail(case: str, folder: str) -> int:
    """The exit code of a run."""

    def train(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
        ray.init(address="local", num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1")
        resources.callback(ray.shutdown)
        if case.endswith("rank"):
            update_on_ranks(case, folder)
        worker = {"scorer": AgentLoop, "constructor": BrokenAtStart}[case].remote()
        ray.get(worker.generate.remote())

    trainer = {"default_local_dir": folder, "resume_mode": "auto", "total_training_steps": 3, "output": {"url": None}}
    return main_diffusion.run_training(OmegaConf.create({"trainer": trainer}), NullReporter(), train)


for case in sys.argv[2:]:
    code = fail(case, f"{sys.argv[1]}/{case}")
    sys.stdout.write(f"exit code {code}\n")
    sys.stdout.flush()
