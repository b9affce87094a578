"""`RayLauncher`: starts replicas on the nodes of a Ray cluster, and stops them."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_omni.trainer.replicas.replica_reports import JoinTimes

ANSWER_SECONDS = 10.0
CONNECT_SECONDS = 1.0


def node_answers(node: Mapping[str, Any]) -> bool:
    """Whether the raylet of a node, one of `ray.nodes()`, accepts a connection."""
    try:
        address = (node["NodeManagerAddress"], node["NodeManagerPort"])
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Room:
    """Nodes for standalone replicas.

    Attributes:
        replicas: how many have a place on nodes that are alive and not being removed, those that run counted too.
        gone: ranks of replicas whose node is not alive.
        leaving: ranks of replicas whose node is being removed.
        hosts: how many of `replicas` have a place on each host, by its address; empty where they may be on any node.
    """

    replicas: int
    gone: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    hosts: Mapping[str, int] = field(default_factory=dict)


@dataclass
class RayLauncher:
    """Starts and stops the processes of replicas.

    Attributes:
        make: the handle of a replica that is not started, by its rank.
        places: how many replicas nodes have room for, which are given by Ray's resources of each.
        requests: references of the numbers of requests that a replica has.
        deadline: seconds for a replica to start.
        pinned: whether `places` counts the nodes of a pool; otherwise replicas may be on any node.
    """

    make: Callable[[int], Any]
    places: Callable[[list[Mapping[str, float]]], int]
    requests: Callable[[Any], list[Any]]
    deadline: float
    pinned: bool = False
    _nodes: dict[int, str] = field(default_factory=dict)  # rank of a replica -> id of its node
    _doubtful: set[str] = field(default_factory=set)  # nodes that lost a replica, and do not answer
    _starting: dict[int, Any] = field(default_factory=dict)  # by rank

    def room(self, replicas: Iterable[Any]) -> Room:
        """The nodes as they are now, with what becomes of `replicas`."""
        import ray

        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        draining = draining_nodes()
        places = {replica.replica_rank: self._node_of(replica) for replica in replicas}
        lost = {node for rank, node in self._nodes.items() if rank not in places}
        # Ray takes a node that was killed for alive until its health checks have failed, for half a minute. A replica
        # that is started for its place would be one too many when another node has replaced it.
        self._doubtful = {node for node in self._doubtful | lost if node in alive and not node_answers(alive[node])}
        staying = [alive[node] for node in alive if node not in draining | self._doubtful]
        hosts: Counter[str] = Counter()
        for node in staying if self.pinned else ():
            hosts[node["NodeManagerAddress"]] += self.places([node["Resources"]])
        return Room(
            self.places([node["Resources"] for node in staying]),
            frozenset(rank for rank, node in places.items() if node is not None and node not in alive),
            frozenset(rank for rank, node in places.items() if node in draining and node in alive),
            hosts,
        )

    def start(self, rank: int) -> tuple[Any, JoinTimes]:
        """Start a replica on a node with room, and wait until its engine is ready; also, how long place and start took.

        Raises:
            Exception: it did not start; its processes are stopped.
        """
        self._starting[rank] = replica = self.make(rank)
        begun = time.monotonic()
        try:
            replica.place()
            placed = time.monotonic()
            asyncio.run(self._launch(replica))
        except BaseException:
            self.stop(replica)
            raise
        finally:
            del self._starting[rank]
        return replica, JoinTimes(placed - begun, time.monotonic() - placed)

    async def _launch(self, replica: Any) -> None:
        waiting = asyncio.timeout(self.deadline)
        try:
            async with waiting:
                await replica.launch_servers()
        except TimeoutError as error:
            if waiting.expired():
                raise TimeoutError(f"its engine was not ready within {self.deadline:g} s") from error
            raise

    def idle(self, replica: Any) -> bool:
        """Whether a replica has no request in flight, or is lost. An unresponsive one may have some."""
        import ray

        asked = self.requests(replica)
        try:
            return not any(ray.get(asked, timeout=ANSWER_SECONDS))
        except ray.exceptions.GetTimeoutError:
            return False
        except ray.exceptions.RayError:  # with its process, its requests are gone
            return True

    def stop(self, replica: Any) -> None:
        """Stop what is left of a replica's processes, and free its accelerators. Does not raise if it is gone."""
        self._nodes.pop(replica.replica_rank, None)
        replica.stop()

    def give_up(self) -> None:
        """End the starts that other threads wait for: each raises soon."""
        for replica in list(self._starting.values()):
            self.stop(replica)

    def _node_of(self, replica: Any) -> str | None:
        """Id of the replica's node; empty if it was lost before the id was known, None if it does not answer."""
        import ray

        if replica.replica_rank not in self._nodes:
            asked = replica.workers[0].__ray_call__.remote(_own_node)
            try:
                self._nodes[replica.replica_rank] = ray.get(asked, timeout=ANSWER_SECONDS)
            except ray.exceptions.GetTimeoutError:  # others are not to wait for it
                return None
            except ray.exceptions.RayError:
                return ""
        return self._nodes[replica.replica_rank]


def draining_nodes() -> set[str]:
    """Ids of the nodes that are about to be removed."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def _own_node(worker: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
