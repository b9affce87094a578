"""Random histories of replicas on the real engine: requests, updates, faults in any order, until one is killed."""

import asyncio
import os
import re
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.replica_driver import SOON, Replica, replicas_of
from verl_omni.weight_sync import ipc

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

REPLICAS = 4  # one of them survives
HISTORIES = 10
SEEDS = st.integers(0, 5)


def got(answer: Any) -> Any:
    import ray

    return ray.get(answer, timeout=SOON)


def ended(call: Coroutine[Any, Any, Any]) -> Any:
    """The result or the error of a coroutine; it must end."""

    async def within() -> Any:
        return await asyncio.wait_for(call, SOON)

    return asyncio.run(within())


@dataclass
class One:
    """A replica with the three interfaces to it: of these tests, verl's trainer and the agent loop."""

    played: Replica  # the trainer's end of an update
    control: Any  # verl's replica
    client: Any  # of this replica only
    address: str

    async def sample(self, seed: int) -> Any:
        return await self.client.generate(uuid4().hex, **self.played.request(seed))


@pytest.fixture(scope="module")
def replicas(start_tiny: Any) -> list[One]:
    # One at a time: images are then equal to the last bit.
    one_at_a_time = "actor_rollout_ref.rollout.max_num_seqs=1"
    config, stack = start_tiny(["a red circle"], f"trainer.n_gpus_per_node={REPLICAS}", one_at_a_time)
    import ray
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    from verl_omni.workers.rollout.llm_server import DiffusionLLMServerClient

    singles = []
    played = replicas_of(stack)
    for replica, control, address in zip(played, stack.weights.replicas, stack.servers.server_addresses, strict=True):
        router = ray.remote(GlobalRequestLoadBalancer).remote({address: replica.server})
        singles.append(One(replica, control, DiffusionLLMServerClient(config, router), address))
        ended(singles[-1].sample(0))  # the router is there
    return singles


alive = precondition(lambda life: life.alive)


class Life(RuleBasedStateMachine):
    """Events of a replica, in any order.

    What must hold: a sample is of the version that it says, an adapter draws the same images whenever it serves, and
    an update that is refused changes nothing. Once the replica is killed, whatever is asked of it, then or before,
    ends with an error that names it; it leaves nothing, and another replica draws as before.
    """

    living: ClassVar[list[One]]
    killed: ClassVar[list[str]] = []
    pictures: ClassVar[dict[tuple[float, int], torch.Tensor]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.one = self.living[-1]
        self.replica = self.one.played
        self.alive = True
        self.version = 1
        self.strength = 1.0
        self.replica.publish(self.replica.adapter(self.strength), self.version)

    def check(self, sample: Any, seed: int) -> None:
        assert (sample.stop_reason, sample.extra_fields["global_steps"]) == ("completed", self.version)
        known = self.pictures.setdefault((self.strength, seed), sample.diffusion_output)
        assert torch.equal(known, sample.diffusion_output)

    @alive
    @rule(seed=SEEDS)
    def generate(self, seed: int) -> None:
        self.check(ended(self.one.sample(seed)), seed)

    @alive
    @rule(strength=st.sampled_from([0.5, 1.0, 2.0]), bucket_bytes=st.sampled_from([600, 1 << 20]))
    def update(self, strength: float, bucket_bytes: int) -> None:
        self.version = self.version + 1
        self.strength = strength
        self.replica.publish(self.replica.adapter(strength), self.version, bucket_bytes)

    @alive
    @rule(kept=st.integers(0, 7))
    def update_that_is_not_whole(self, kept: int) -> None:
        """The sender fails after some tensors."""
        handle, answer = self.replica.begin(self.version + 1)

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            yield from list(self.replica.adapter(3.0).items())[:kept]
            raise OSError("the trainer's disk is gone")

        with pytest.raises(OSError, match="disk is gone"):
            ipc.send(weights(), handle=handle, bucket_bytes=600, device=None, deadline=30.0)
        with pytest.raises(Exception, match="disk is gone"):
            got(answer)

    @alive
    @rule(seeds=st.lists(SEEDS, min_size=1, max_size=5), strength=st.sampled_from([0.5, 2.0]))
    def update_while_requests_are_in_flight(self, seeds: list[int], strength: float) -> None:
        """Each sample has the version before or after, and the matching image."""
        asked = [self.replica.draw(seed) for seed in seeds]
        before = (self.version, self.strength)
        self.update(strength, 1 << 20)
        after = (self.version, self.strength)
        for seed, answer in zip(seeds, asked, strict=True):
            sample = got(answer)
            self.version, self.strength = before if sample.extra_fields["global_steps"] == before[0] else after
            self.check(sample, seed)
        self.version, self.strength = after

    @alive
    @rule(seeds=st.lists(SEEDS, min_size=1, max_size=5))
    def abort(self, seeds: list[int]) -> None:
        asked = [self.replica.draw(seed) for seed in seeds]
        ended(self.one.control.abort_all_requests())
        late = self.replica.draw(seeds[0])
        ended(self.one.control.resume_generation())
        for seed, answer in zip(seeds, asked, strict=True):
            sample = got(answer)
            if sample.stop_reason == "aborted":
                assert sample.diffusion_output.numel() == 0
            else:
                self.check(sample, seed)
        self.check(got(late), seeds[0])

    @alive
    @rule(seed=SEEDS)
    def sleep_and_wake(self, seed: int) -> None:
        """A request to a sleeping replica waits until it is awake."""
        import ray

        ended(self.one.control.sleep())
        waiting = self.replica.draw(seed)
        assert ray.wait([waiting], timeout=0.2)[0] == []
        ended(self.one.control.wake_up())
        self.check(got(waiting), seed)

    @precondition(lambda self: self.alive and len(self.living) > 1)
    @rule(
        moment=st.sampled_from(["idle", "drawing", "updating", "asleep"]),
        seeds=st.lists(SEEDS, min_size=5, max_size=10),
    )
    def kill(self, moment: str, seeds: list[int]) -> None:
        counted = Leftovers()
        pid = self.replica.pid()
        update = self.replica.begin(self.version + 1) if moment == "updating" else None
        if moment == "asleep":
            ended(self.one.control.sleep())
        self.alive = False
        self.killed.append(moment)
        self.living.remove(self.one)
        samples = ended(self._asked_while_killed(seeds if moment != "idle" else [], pid, moment))
        for seed, sample in zip(seeds, samples, strict=False):
            if isinstance(sample, Exception):
                self._names_the_replica(sample)
            else:
                self.check(sample, seed)
        assert moment != "asleep" or all(isinstance(sample, Exception) for sample in samples)
        if update is not None:
            self._update_ends(*update)
        counted.none()
        self.check_survivor()

    async def _asked_while_killed(self, seeds: list[int], pid: int, moment: str) -> list[Any]:
        asked = [asyncio.ensure_future(self.one.sample(seed)) for seed in seeds]
        if asked:  # a sleeping or updating replica answers none of them
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=1.0 if moment != "drawing" else SOON)
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*asked, return_exceptions=True)

    def _update_ends(self, handle: str, answer: Any) -> None:
        with pytest.raises(Exception, match="DeadlineExceeded"):
            ipc.send(self.replica.adapter(3.0).items(), handle=handle, bucket_bytes=600, device=None, deadline=2.0)
        with pytest.raises(Exception, match=r"died|unavailable"):
            got(answer)

    def _names_the_replica(self, error: Exception) -> None:
        from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed

        assert isinstance(error, ReplicaCallFailed), error
        assert re.match(rf"replica ({re.escape(self.one.address)}|{self.replica.rank}\b)", str(error)), error

    @precondition(lambda self: not self.alive)
    @rule(what=st.sampled_from(["sample", "sleep", "wake_up", "abort_all_requests", "resume_generation"]))
    def ask_the_dead(self, what: str) -> None:
        calls = {"sample": lambda: self.one.sample(0)}
        with pytest.raises(Exception) as caught:  # noqa: PT011  type and message are checked below
            ended(calls.get(what, getattr(self.one.control, what, None))())
        self._names_the_replica(caught.value)

    @precondition(lambda self: not self.alive)
    @rule(kept=st.integers(0, 7))
    def update_the_dead(self, kept: int) -> None:
        self._update_ends(*self.replica.begin(self.version + 1))

    @precondition(lambda self: not self.alive)
    @rule()
    def check_survivor(self) -> None:
        """Another replica generates the same image with the same adapter."""
        sample = ended(self.living[0].sample(0))
        known = self.pictures.setdefault((1.0, 0), sample.diffusion_output)
        assert sample.extra_fields["global_steps"] == 1 and torch.equal(known, sample.diffusion_output)


def test_in_any_order_of_events_a_sample_matches_its_version(replicas: list[One]) -> None:
    counted = Leftovers()
    Life.living = replicas
    # Derandomized, so that a failure repeats. A killed replica is gone for the histories after it.
    chosen = settings(
        max_examples=HISTORIES,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Life, settings=chosen)
    assert len(Life.killed) == REPLICAS - 1, Life.killed
    counted.none()
