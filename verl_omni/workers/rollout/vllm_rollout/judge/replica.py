"""`JudgeReplica`: handle of one replica of a judge, with a deadline on every call to its servers."""

import os
import re
from pathlib import Path
from typing import Any

import ray
from typing_extensions import override
from verl.single_controller.base import Worker
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from verl_omni.workers.rollout.vllm_rollout.driver.deadline_replica import DeadlineReplica

# What ends a traceback in vLLM's log of an engine's processes: `(EngineCore pid=7) ERROR ... [core.py:9] Type: text`.
_ENGINE_ERROR = re.compile(
    r"\((?:EngineCore|Worker).*\bERROR\b.*\] ((?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?)$", re.MULTILINE
)
_UNNAMED = "root cause"  # in vLLM's errors that refer to one in its log
WORKER_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.judge.worker_extension.JudgeWorkerExtension"


class _Printed:
    """Reader of further output of this process and its children, where Ray keeps it in a file."""

    def __init__(self) -> None:
        self._log = Path(f"/proc/{os.getpid()}/fd/1").resolve()
        self._before = self._log.stat().st_size if self._log.is_file() else 0

    def text(self) -> str:
        """All of it; empty without a file."""
        if not self._log.is_file():
            return ""
        with self._log.open("rb") as log:
            log.seek(self._before)
            return log.read().decode(errors="replace")


class JudgeServer(vLLMHttpServer):  # type: ignore[misc]
    """HTTP server of one judge replica, with vLLM's routes such as /v1/chat/completions."""

    @override
    def _get_worker_extension_cls(self) -> str:
        return WORKER_EXTENSION

    @override
    async def run_server(self, args: Any) -> None:
        """Start the engine and the HTTP server.

        Raises:
            RuntimeError: the engine's process failed; the message has its last error, which vLLM only logs.
        """
        printed = _Printed()
        try:
            await super().run_server(args)
        except RuntimeError as error:
            cause = engine_error(printed.text()) if _UNNAMED in str(error) else None
            if cause is None:
                raise
            raise RuntimeError(f"the engine did not start: {cause}") from error

    async def shutdown(self) -> None:
        """Stop the engine's process."""
        self.engine.shutdown()


def engine_error(log: str) -> str | None:
    """PURE: the last error that an engine's processes logged, as `Type: message` or `Type`; None if there is none."""
    errors = [error for error in _ENGINE_ERROR.findall(log) if _UNNAMED not in error]
    return errors[-1].strip() if errors else None


class AcceleratorHolder(Worker):  # type: ignore[misc]
    """Reserves one accelerator of a replica in Ray; the server's engine computes on it."""


class JudgeReplica(DeadlineReplica):
    """verl's replica of a reward model.

    Args:
        node_resource: custom Ray resource of the nodes that a replica on dedicated accelerators may run on.
        ray_resource: Ray resource of these accelerators; None: the same as the trainer's.
        deadline: seconds for a reply of the servers.
    """

    def __init__(
        self,
        replica_rank: int,
        config: Any,
        model_config: Any,
        gpus_per_node: int,
        *,
        node_resource: str | None,
        ray_resource: str | None,
        deadline: float,
    ) -> None:
        super().__init__(replica_rank, config, model_config, gpus_per_node, is_reward_model=True)
        self.server_class = ray.remote(JudgeServer)
        self._node_resource = node_resource
        self._ray_resource = ray_resource
        self._deadline = deadline

    @property
    @override
    def deadline(self) -> float:
        return self._deadline

    @property
    @override
    def described(self) -> str:
        return f"{self.replica_rank} of the judge"

    @override
    async def init_standalone(self) -> None:
        """Start the replica on dedicated accelerators."""
        self.place()
        await self.await_reply("start", self.launch_servers())

    def place(self) -> None:
        """Reserve the accelerators of the replica; waits until a node has them."""
        self.start_workers(f"judge_{self.replica_rank}", self._node_resource, self._ray_resource)

    @override
    async def init_colocated(self, resource_pool: Any) -> None:
        """Start the replica on accelerators of the trainer."""
        await self.await_reply("start", super().init_colocated(resource_pool))

    @override
    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        return RayClassWithInitArgs(cls=ray.remote(AcceleratorHolder))
