"""`Stack`: the actors and handles of a run, outside the driver."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verl_omni.trainer.replicas.replica_pool import ReplicaPool
from verl_omni.trainer.replicas.replica_updates import ReplicaUpdates
from verl_omni.trainer.rewards.judge_members import JudgeMembers

STOP_SECONDS = 60.0  # timeout for an engine to shut down


@dataclass
class Cluster:
    """Ray cluster of a run."""

    stop: Callable[[], None]  # disconnects, and stops what this process started


@dataclass
class Stack:
    """Actors and handles of a run, outside the driver."""

    workers: Any  # RayWorkerGroup of DiffusionActorRolloutWorker
    servers: Any  # LLMServerManager
    agent_loop: Any  # AgentLoopManager
    rewards: Any  # RewardWorkers
    weights: Any  # CheckpointEngineManager or ReplicaUpdates
    ray: Cluster
    deadline: float  # timeout in seconds for a replica to answer
    device_memory: int | None = None  # bytes of the trainer's smallest accelerator; None: it runs on CPUs
    pool: ReplicaPool[ReplicaUpdates] | None = None  # standalone replicas
    judges: ReplicaPool[JudgeMembers] | None = None  # judge on dedicated accelerators
    before_ray_ends: list[Callable[[], None]] = field(default_factory=list)  # end threads, when no engine is left

    def versions(self) -> list[int]:
        """Weight version that each rollout replica reports; a standalone one that does not answer is left out.

        Raises:
            ReplicaCallFailed: a replica on the trainer's accelerators did not answer within `deadline`.
        """
        if self.pool is not None:
            return self.pool.updates.versions()
        import ray

        from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed

        serving = self.weights.replicas
        requests = [replica.server_handle.get_global_steps.remote() for replica in serving]
        answered, _ = ray.wait(requests, num_returns=len(requests), timeout=self.deadline)
        if silent := [
            str(replica.replica_rank)
            for replica, answer in zip(serving, requests, strict=True)
            if answer not in answered
        ]:
            raise ReplicaCallFailed(
                f"replica {', '.join(silent)} did not report its weight version within {self.deadline:g} s"
            )
        versions: list[int] = ray.get(requests)
        return versions

    def stop(self) -> None:
        """Shut down the engines, which removes their shared memory, then Ray.

        Works after a failure too; an engine that does not shut down within `STOP_SECONDS` is killed.
        """
        import ray

        if self.pool is not None:
            servers = [replica.server_handle for replica in self.pool.stop()]
        else:
            servers = self.servers.server_handles
        try:
            self.rewards.stop()
            endings = {server.shutdown.remote(): server for server in servers}
            ended, silent = ray.wait(list(endings), num_returns=len(endings), timeout=STOP_SECONDS)
            for ending in silent:
                ray.kill(endings[ending])
            for ending in ended:
                with contextlib.suppress(ray.exceptions.RayActorError):  # it has exited already
                    ray.get(ending)
            # An actor that exits by itself removes its semaphores from /dev/shm; a killed one does not.
            last = [endings[ending].__ray_terminate__.remote() for ending in ended]
            if last:
                ray.wait(last, num_returns=len(last), timeout=10)
        finally:
            if self.before_ray_ends:
                self._end_calls()
            self.ray.stop()

    def _end_calls(self) -> None:
        """End the calls of Ray in other threads, and then the threads."""
        for worker in self.agent_loop.agent_loop_workers:
            worker.__ray_terminate__.remote()  # as above; those who wait for its samples go on
        for action in self.before_ray_ends:
            action()
