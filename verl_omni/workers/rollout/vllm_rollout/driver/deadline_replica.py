"""`DeadlineReplica`: verl's handle of a replica's servers, with a deadline on its calls."""

import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any

import ray
from ray.util.placement_group import get_placement_group, remove_placement_group
from typing_extensions import override
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from verl_omni.workers.rollout.replica_calls import await_reply
from verl_omni.workers.rollout.vllm_rollout.driver.pool_accelerators import WithEnvironment, pool_accelerators


class DeadlineReplica(vLLMReplica):  # type: ignore[misc]
    """A replica whose calls raise `ReplicaCallFailed`, which names it, without a reply within the deadline."""

    server_class: Any
    _groups: Sequence[str] = ()  # names of the placement groups of a standalone replica

    @property
    @abstractmethod
    def deadline(self) -> float:
        """Seconds for a reply of the servers."""

    @property
    @abstractmethod
    def described(self) -> str:
        """Name of the replica in error messages."""

    def start_workers(self, name: str, node_resource: str | None, ray_resource: str | None) -> None:
        """Start the workers, one on each accelerator of the replica; waits until a node has them.

        Args:
            name: prefix of the names of workers and placement groups.
            node_resource: custom Ray resource of the nodes that they may run on; None: any node.
            ray_resource: Ray resource of the accelerators; None: the same as the driver's.
        """
        self.rollout_mode = RolloutMode.STANDALONE
        nodes = [self.gpus_per_replica_node] * self.nnodes
        # So that `stop` finds those for which this call still waits.
        self._groups = [f"{name}:{number}" for number in range(self.nnodes)]
        accelerators = pool_accelerators(ray_resource)
        groups = accelerators.reserve(name, nodes, node_resource)
        self.workers = accelerators.start(name, nodes, groups, self.get_ray_class_with_init_args()).workers
        self.server_class = WithEnvironment(self.server_class, accelerators.server_environment)

    def stop(self) -> None:
        """Kill the processes and free the accelerators; also while another thread starts the replica, which raises."""
        for actor in (*self.servers, *self.workers):
            ray.kill(actor)
        for name in self._groups:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # a ValueError: there is no such group
                remove_placement_group(get_placement_group(name))

    @override
    async def sleep(self) -> None:
        await self.await_reply("sleep", super().sleep())

    @override
    async def wake_up(self) -> None:
        await self.await_reply("wake_up", super().wake_up())

    async def await_reply(self, call: str, reply: Awaitable[Any]) -> Any:
        """The reply of the servers to a call."""
        return await await_reply(reply, replica=self.described, call=call, deadline=self.deadline)
