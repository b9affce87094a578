"""`PooledScorer`: scores samples in the processes of a scorer's pool."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from verl_omni.reward_loop.actor_replies import Unresponsive, reply_of
from verl_omni.reward_loop.scorer_pools.scorer_process import ENDED, ERROR
from verl_omni.reward_loop.scoring_queue import Group
from verl_omni.utils.root_cause import describe_error


def process_name(key: str, number: int) -> str:
    """The name of the Ray actor that is process `number` of a scorer's pool."""
    return f"scorer_{key}_{number}"


def find_processes(key: str, count: int) -> list[Any]:
    """Handles of the processes of a scorer's pool, which the trainer has started."""
    return [ray.get_actor(process_name(key, number)) for number in range(count)]


class PooledScorerError(RuntimeError):
    """A scorer in its own process raised an error; the text has its type."""


class PoolLost(RuntimeError):
    """A process of a scorer ended too often."""


class PooledScorer:
    """A reward worker's connection to the processes of a scorer.

    A sample goes to the process that has the fewest of this reward worker's samples. All samples of a group go to the
    same one, which scores them together.

    Args:
        processes: handles of the Ray actors.
        deadline_seconds: a process that does not respond for twice this time fails the sample.
    """

    def __init__(self, processes: Sequence[Any], deadline_seconds: float) -> None:
        self._processes = processes
        self._in_flight = [0] * len(processes)
        self._next = 0
        # The process of each group of which samples are missing, and how many are.
        self._groups: dict[str, tuple[int, int]] = {}
        self._deadline = deadline_seconds

    async def score(self, sample: Mapping[str, Any], group: Group | None = None) -> dict[str, Any]:
        """The score of a sample, as of `part_result`.

        Raises:
            PooledScorerError: the scorer raised an error.
            PoolLost: the process ended too often.
            TimeoutError: the process does not respond.
        """
        number = self._choose(group)
        self._in_flight[number] += 1
        try:
            process = self._processes[number]
            reply: dict[str, Any] = await reply_of(process, process.score.remote(sample, group), self._deadline)
        except Unresponsive as error:
            raise TimeoutError(f"its process {error}") from error
        except RayActorError as error:
            raise PoolLost(f"its process is gone: {describe_error(error)}") from error
        finally:
            self._in_flight[number] -= 1
        if ENDED in reply:
            raise PoolLost(reply[ENDED])
        if ERROR in reply:
            raise PooledScorerError(reply[ERROR])
        return reply

    def _choose(self, group: Group | None) -> int:
        if group is None:
            return self._least_busy()
        name, size = group
        number, missing = self._groups.pop(name, (None, size))
        if number is None:
            number = self._least_busy()
        if missing > 1:
            self._groups[name] = (number, missing - 1)
        return number

    def _least_busy(self) -> int:
        count = len(self._processes)
        chosen = min(range(count), key=lambda number: (self._in_flight[number], (number - self._next) % count))
        self._next = (chosen + 1) % count
        return chosen
