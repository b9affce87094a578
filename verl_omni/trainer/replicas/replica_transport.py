"""Calls of the driver to standalone replicas and to the router that chooses one for each request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_omni.utils.root_cause import describe_error

REASON_SECONDS = 2.0  # for the own error of a replica that the trainer has waited for already


@dataclass
class ReplicaTransport:
    """Calls with a deadline. A replica has a server, and a worker for each of its accelerators.

    Attributes:
        workers: RayWorkerGroup of DiffusionActorRolloutWorker.
        router: actor that chooses a replica for each request.
        deadline: seconds to wait for a replica's answer, besides the deadlines of the transfer itself.
    """

    workers: Any
    router: Any
    deadline: float

    def unreachable(self, replicas: Sequence[Any]) -> dict[int, str]:
        """Rank and reason of each replica of which a process does not answer, or whose engine has ended."""
        asked = [(replica.replica_rank, replica.server_handle.check_engine.remote()) for replica in replicas]
        asked += [(replica.replica_rank, worker.ready.remote()) for replica in replicas for worker in replica.workers]
        errors = self._errors([answer for _, answer in asked])
        return {asked[number][0]: reason for number, reason in errors.items()}

    def send(self, version: int, replicas: Sequence[Any]) -> dict[int, str]:
        """Send the trainer's weights; rank and reason of each replica that did not take them.

        Raises:
            Any error of the trainer's ranks.
        """
        import ray

        targets = [(replica.replica_rank, worker) for replica in replicas for worker in replica.workers]
        address = self.workers.open_weight_stream()
        receiving = [
            worker.receive_weights.remote(address, number, version) for number, (_, worker) in enumerate(targets)
        ]
        unconfirmed = ray.get(self.workers.send_to_replicas(version, len(targets)))[0]
        failed: dict[int, str] = {}
        for number, reason in unconfirmed.items():
            failed.setdefault(targets[number][0], reason)
        answers = [(rank, answer) for (rank, _), answer in zip(targets, receiving, strict=True)]
        lost = [(rank, answer) for rank, answer in answers if rank in failed]
        others = [(rank, answer) for rank, answer in answers if rank not in failed]
        # An error of the replica itself says more than what the trainer saw of it, if there is one.
        for number, reason in self._errors([answer for _, answer in lost], REASON_SECONDS).items():
            failed[lost[number][0]] = reason
        for number, reason in self._errors([answer for _, answer in others]).items():
            failed[others[number][0]] = reason
        return failed

    def versions(self, replicas: Sequence[Any]) -> tuple[dict[int, int], dict[int, str]]:
        """Rank and version of the replicas that answer; rank and reason of the others."""
        import ray

        asked = [replica.server_handle.get_global_steps.remote() for replica in replicas]
        errors = self._errors(asked)
        ranks = [replica.replica_rank for replica in replicas]
        by_rank = {ranks[number]: ray.get(answer) for number, answer in enumerate(asked) if number not in errors}
        return by_rank, {ranks[number]: f"its weight version: {reason}" for number, reason in errors.items()}

    def serving(self) -> set[str]:
        """Addresses in the router."""
        return set(self._routed(self.router.get_all_servers.remote()))

    def add(self, replicas: Sequence[Any]) -> None:
        """Add replicas to the router."""
        servers = {replica.server_address: replica.server_handle for replica in replicas}
        self._routed(self.router.add_servers.remote(servers))

    def remove(self, replicas: Sequence[Any]) -> None:
        """Take replicas from the router; those that are not in it are ignored."""
        self._routed(self.router.remove_servers.remote([replica.server_address for replica in replicas]))

    def _routed(self, answer: Any) -> Any:
        """The router's answer.

        Raises:
            ReplicaCallFailed: it is gone, or did not answer within `replica_calls.ROUTER_SECONDS`.
        """
        import ray

        from verl_omni.workers.rollout import replica_calls

        try:
            return ray.get(answer, timeout=replica_calls.ROUTER_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise replica_calls.silent_router() from None
        except ray.exceptions.RayActorError as error:
            raise replica_calls.lost_router(error) from error

    def _errors(self, answers: list[Any], seconds: float | None = None) -> dict[int, str]:
        """Why the answers that failed, or did not arrive within the deadline, did; by their place.

        Args:
            seconds: wait no longer than so, and leave out what has not arrived then.
        """
        import ray

        if not answers:
            return {}
        limit = self.deadline if seconds is None else min(self.deadline, seconds)
        arrived, _ = ray.wait(answers, num_returns=len(answers), timeout=limit)
        errors = {}
        for number, answer in enumerate(answers):
            if answer not in arrived:
                if seconds is None:
                    errors[number] = f"no answer within {self.deadline:g} s"
                continue
            try:
                ray.get(answer)
            except ray.exceptions.RayError as error:
                errors[number] = describe_error(error)
        return errors
