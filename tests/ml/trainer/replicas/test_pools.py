"""Settings of standalone replicas, and the manager of their weight updates with actors that fail."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ml import smallest_job
from tests.ml.trainer.replicas.replicas_in_memory import Recorded
from verl_omni.trainer.replicas import pool_nodes
from verl_omni.trainer.replicas.replica_transport import REASON_SECONDS, ReplicaTransport
from verl_omni.trainer.replicas.replica_updates import ReplicaUpdates
from verl_omni.trainer.settings import configuration, pool_settings

ROLLOUT = "actor_rollout_ref.rollout"
POOL = (f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=4")


def job(*overrides: str) -> Any:
    config = smallest_job.load(*overrides)
    pool_settings.fill_in(config.actor_rollout_ref.rollout, has_accelerator=True)
    return config


def filled_in(*overrides: str) -> Any:
    return job(*overrides).actor_rollout_ref.rollout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{ROLLOUT}.nnodes=-1"], "nnodes: must be a number of nodes"),
        ([f"{ROLLOUT}.checkpoint_engine.backend=omni_tcp"], "omni_tcp is for standalone replicas; write"),
        ([f"{ROLLOUT}.node_resource=pool"], f"node_resource: is not read with {ROLLOUT}.nnodes=0"),
        ([f"{ROLLOUT}.ray_resource=NPU"], f"ray_resource: is not read with {ROLLOUT}.nnodes=0"),
        (
            [*POOL, f"{ROLLOUT}.ray_resource=npu"],
            "ray_resource: must be GPU, NPU, or null for the trainer's: npu",
        ),
        ([f"{ROLLOUT}.min_replicas=1"], f"min_replicas: is not read with {ROLLOUT}.nnodes=0"),
        ([*POOL, f"{ROLLOUT}.checkpoint_engine.backend=naive"], "naive is for engines on the trainer's accelerators"),
        ([f"{ROLLOUT}.checkpoint_engine.backend=nccl"], "nccl is for standalone replicas; write"),
        (
            ["actor_rollout_ref.hybrid_engine=False"],
            f"false is for standalone replicas; write true, or {ROLLOUT}.nnodes=1",
        ),
        ([*POOL, f"{ROLLOUT}.free_cache_engine=true"], "free_cache_engine: a standalone replica never sleeps"),
        ([*POOL, f"{ROLLOUT}.enable_sleep_mode=true"], "enable_sleep_mode: a standalone replica never sleeps"),
        ([*POOL, f"{ROLLOUT}.tensor_model_parallel_size=3"], "4 is no multiple of the 3 accelerators of a replica"),
        ([f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=0"], "n_gpus_per_node: must be at least 1: 0"),
        ([*POOL, f"{ROLLOUT}.min_replicas=9"], "min_replicas: must be from 1 to the 8 replicas: 9"),
        ([*POOL, f"{ROLLOUT}.min_replicas=0"], "min_replicas: must be from 1 to the 8 replicas: 0"),
    ],
)
def test_what_does_not_work_with_or_without_standalone_replicas_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(configuration.SettingsError) as caught:
        smallest_job.load(*overrides)
    assert message in str(caught.value)


def test_the_defaults_depend_on_the_nodes_of_the_rollout() -> None:
    colocated = filled_in()
    assert (colocated.checkpoint_engine.backend, colocated.free_cache_engine) == ("naive", True)
    pool = filled_in(*POOL)
    assert (pool.checkpoint_engine.backend, pool.free_cache_engine, pool.min_replicas) == ("omni_tcp", False, 1)
    assert filled_in(*POOL, f"{ROLLOUT}.min_replicas=3").min_replicas == 3


@pytest.mark.parametrize("backend", pool_settings.VERL_BACKENDS)
def test_a_backend_of_verl_for_standalone_replicas_is_tcp_and_is_named(backend: str) -> None:
    backend_settings = [f"{ROLLOUT}.checkpoint_engine.backend={backend}", "actor_rollout_ref.hybrid_engine=False"]
    kwargs = f"+{ROLLOUT}.checkpoint_engine.engine_kwargs.{backend}.rebuild_group=True"
    assert filled_in(*POOL, *backend_settings, kwargs).checkpoint_engine.backend == "omni_tcp"
    overrides = [*smallest_job.REQUIRED, *POOL, *backend_settings, kwargs]
    named = configuration.without_effect(overrides, configuration.load(overrides))
    assert list(named) == [
        f"{ROLLOUT}.checkpoint_engine.engine_kwargs.{backend}.rebuild_group",
        f"{ROLLOUT}.checkpoint_engine.backend",
    ]
    assert set(named.values()) == {"weights reach standalone replicas over TCP (omni_tcp)"}


ROLLOUT_NODE = {"Alive": True, "Resources": {"rollout_pool": 1.0, "GPU": 4.0}}


def set_nodes(
    monkeypatch: pytest.MonkeyPatch,
    count: Callable[[], int],
    resources: Callable[[], dict[str, float]] = lambda: {"rollout_pool": 1.0},
) -> None:
    """Let Ray's cluster have a number of nodes of the rollout's pool, and these resources."""
    import ray

    monkeypatch.setattr(pool_nodes, "NODE_POLL_SECONDS", 0.01)
    monkeypatch.setattr(ray, "cluster_resources", resources)
    monkeypatch.setattr(ray, "nodes", lambda: [ROLLOUT_NODE] * count())


@pytest.mark.parametrize(
    ("nodes", "of_each", "size", "found", "wanted"),
    [(2, 4, 1, 4, 8), (1, 8, 1, 4, 8), (1, 8, 2, 2, 4), (4, 3, 1, 4, 12)],
    ids=["a node less", "half a node", "half a node, replicas of two", "more on a node than in the settings"],
)
def test_a_run_starts_with_the_nodes_that_it_needs_when_the_others_do_not_join(
    nodes: int, of_each: int, size: int, found: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = job(
        f"{ROLLOUT}.nnodes={nodes}",
        f"{ROLLOUT}.n_gpus_per_node={of_each}",
        f"{ROLLOUT}.tensor_model_parallel_size={size}",
        f"{ROLLOUT}.node_resource=rollout_pool",
        f"{ROLLOUT}.deadline_seconds=0.01",
    )
    rollout = config.actor_rollout_ref.rollout
    set_nodes(monkeypatch, lambda: 1)
    messages: list[str] = []
    pool_nodes.wait_for_nodes(config, messages.append)
    assert messages[-1] == f"starting with the nodes of {found} rollout replicas of {wanted}; others may join later"
    assert rollout.nnodes > 0, "0 is an engine on the trainer's accelerators"
    assert (pool_settings.replicas(rollout), pool_settings.replica_size(rollout)) == (found, size)


def test_a_run_waits_for_other_nodes_as_long_as_they_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of four nodes never does, and the run does not wait for it until `rollout.deadline_seconds`."""
    now = 0.0
    counts = iter([0, 1, 1, 2, 2, 2, 3])

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 50.0

    config = job(
        f"{ROLLOUT}.nnodes=4",
        f"{ROLLOUT}.n_gpus_per_node=4",
        f"{ROLLOUT}.node_resource=rollout_pool",
        f"{ROLLOUT}.min_replicas=4",
    )
    monkeypatch.setattr(pool_nodes, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    set_nodes(monkeypatch, lambda: next(counts, 3))
    messages: list[str] = []
    pool_nodes.wait_for_nodes(config, messages.append)
    assert messages[-1] == "starting with the nodes of 12 rollout replicas of 16; others may join later"
    assert now == 6 * 50.0 + 150.0, "two minutes after the last one"


def test_a_run_waits_for_the_nodes_of_its_pools_and_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = (*POOL, f"{ROLLOUT}.node_resource=rollout_pool", "trainer.node_resource=trainer_pool")
    config = job(*overrides, f"{ROLLOUT}.min_replicas=5")
    both = {"trainer_pool": 1.0, "rollout_pool": 1.0}
    resources = iter([{"trainer_pool": 1.0}, both])
    nodes = iter([1, 2])
    messages: list[str] = []
    set_nodes(monkeypatch, lambda: next(nodes), lambda: next(resources))
    pool_nodes.wait_for_nodes(config, messages.append)
    assert messages == [
        "waiting for nodes with the Ray resource rollout_pool",
        "waiting for the nodes of 8 rollout replicas: 4 are there",
    ]
    config.actor_rollout_ref.rollout.deadline_seconds = 0.01
    set_nodes(monkeypatch, lambda: 1, lambda: both)
    with pytest.raises(ValueError, match=r"the resource rollout_pool have room for 4 replicas, and rollout.min_rep"):
        pool_nodes.wait_for_nodes(config, messages.append)
    set_nodes(monkeypatch, lambda: 0, dict)
    with pytest.raises(
        ValueError, match=r"rollout.node_resource: no node of the Ray cluster has the resource rollout_"
    ):
        pool_nodes.wait_for_nodes(config, messages.append)


# --- the manager --------------------------------------------------------------------------------------------


class FakeRay:
    """Answers are values or errors that have arrived, or None for one that never does."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayActorError(RayError):
            pass

        class GetTimeoutError(Exception):
            pass

    def get(self, answers: Any, timeout: float | None = None) -> Any:
        if isinstance(answers, list):
            return [self.get(answer) for answer in answers]
        if answers.value is None:
            raise self.exceptions.GetTimeoutError("some object(s) not ready")
        if isinstance(answers.value, Exception):
            raise answers.value
        return answers.value

    def __init__(self) -> None:
        self.waits: list[float] = []  # for answers that do not come

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        silent = [answer for answer in answers if answer.value is None]
        self.waits += [timeout] if silent else []
        return [answer for answer in answers if answer not in silent], silent


class Calls:
    """A method of an actor with prepared answers; records its arguments."""

    def __init__(self, value: Any = "ok") -> None:
        self.value = value
        self.arguments = []

    def remote(self, *arguments: Any) -> Any:
        self.arguments.append(arguments)
        return SimpleNamespace(value=self.value)


GONE = FakeRay.exceptions.RayError("the actor died")


def manager(
    monkeypatch: pytest.MonkeyPatch, *replicas: tuple[Any, Any], unconfirmed: dict[int, str] | None = None
) -> Any:
    """A manager of replicas with one worker each, whose answers to `ready` and to `receive_weights` are given."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr("verl_omni.trainer.replicas.replica_transport.describe_error", str)
    fake_replicas = [
        SimpleNamespace(
            replica_rank=rank,
            server_address=f"host:{rank}",
            server_handle=SimpleNamespace(name=f"handle {rank}", get_global_steps=Calls(4), check_engine=Calls("ok")),
            workers=[SimpleNamespace(ready=Calls(ready), receive_weights=Calls(received))],
        )
        for rank, (ready, received) in enumerate(replicas)
    ]
    workers = SimpleNamespace(
        open_weight_stream=lambda: "address",
        send_to_replicas=lambda version, receivers: [SimpleNamespace(value=unconfirmed or {})],
    )
    serving = [replica.server_address for replica in fake_replicas]
    router = SimpleNamespace(remove_servers=Calls(), get_all_servers=Calls(serving), add_servers=Calls())
    return ReplicaUpdates(
        ReplicaTransport(workers, router, deadline=1.0), fake_replicas, least=1, patience=0.0, reports=Recorded()
    )


def ranks(updates: Any) -> list[int]:
    return [replica.replica_rank for replica in updates.replicas]


def test_replicas_that_fail_in_any_way_leave_the_router_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("ok", "ok"), (GONE, "ok"), (None, "ok"), ("ok", GONE), ("ok", None), ("ok", "ok"), ("ok", "ok")]
    # Receivers 0 to 4 are replicas 0, 3, 4, 5 and 6: nothing is sent to those that do not answer.
    updates = manager(monkeypatch, *answers, unconfirmed={3: "digest mismatch"})
    before = list(updates.replicas)
    updates.update_weights(4)
    assert ranks(updates) == [0, 6]
    assert updates.transport.router.remove_servers.arguments == [([f"host:{rank}" for rank in range(1, 6)],)]
    assert [replica.workers[0].receive_weights.arguments for replica in before[1:3]] == [[], []]
    reasons = ["the actor died", "no answer within 1 s", "the actor died", "no answer within 1 s", "digest mismatch"]
    assert updates.reports.lines == [
        f"replica {rank} serves no more: version 4 did not reach it: {reason}"
        for rank, reason in enumerate(reasons, start=1)
    ]
    assert [replica.replica_rank for replica in updates.take_left()] == [1, 2, 3, 4, 5] and updates.take_left() == []


def test_an_update_does_not_wait_twice_for_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = manager(monkeypatch, ("ok", "ok"), ("ok", None), ("ok", GONE), unconfirmed={1: "too slow", 2: "it left"})
    updates.transport.deadline = 120.0
    updates.update_weights(4)
    assert ranks(updates) == [0] and sys.modules["ray"].waits == [REASON_SECONDS]  # type: ignore[attr-defined]
    assert [line.partition("did not reach it: ")[2] for line in updates.reports.lines] == ["too slow", "the actor died"]


def test_a_replica_whose_engine_ended_while_it_was_idle_gets_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = manager(monkeypatch, ("ok", "ok"), ("ok", "ok"))
    ended = updates.replicas[1]
    ended.server_handle.check_engine.value = GONE
    updates.update_weights(4)
    assert ranks(updates) == [0] and ended.workers[0].receive_weights.arguments == []
    assert updates.take_left() == [ended]


def test_a_replica_that_was_silent_serves_again_when_it_has_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = manager(monkeypatch, ("ok", "ok"), ("ok", "ok"), ("ok", GONE))
    updates.transport.router.get_all_servers.value = ["host:0"]  # requests have left out the others
    updates.update_weights(4)
    assert updates.transport.router.add_servers.arguments == [({"host:1": updates.replicas[1].server_handle},)]


def test_a_router_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed

    updates = manager(monkeypatch, ("ok", "ok"))
    updates.transport.router.get_all_servers.value = None
    with pytest.raises(ReplicaCallFailed, match=r"the router of the rollout replicas.* did not answer within 120 s"):
        updates.update_weights(4)
    updates.transport.router.get_all_servers.value = FakeRay.exceptions.RayActorError("no process")
    with pytest.raises(ReplicaCallFailed, match=r"^the router of the rollout replicas.* is gone: .*no process"):
        updates.update_weights(4)


def test_a_replica_that_does_not_report_its_version_serves_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = manager(monkeypatch, ("ok", "ok"), ("ok", "ok"))
    updates.replicas[1].server_handle.get_global_steps.value = GONE
    assert updates.versions() == [4]
    assert (ranks(updates), updates.reports.lines) == (
        [0],
        ["replica 1 serves no more: its weight version: the actor died"],
    )


@pytest.mark.parametrize(
    "overrides",
    [
        [*POOL, f"{ROLLOUT}.ray_resource=NPU"],
        [
            "reward.reward_model.enable=true",
            "reward.reward_model.model_path=j",
            "reward.reward_model.ray_resource=NPU",
            "reward.reward_model.enable_resource_pool=true",
            "reward.reward_model.nnodes=1",
        ],
    ],
)
def test_a_ray_of_this_machine_has_accelerators_of_one_kind(overrides: list[str]) -> None:
    from verl_omni.trainer import startup

    with pytest.raises(ValueError, match=r"ray_resource: NPU: this machine has accelerators of one kind; remove it"):
        startup.start_ray(smallest_job.load(*overrides), lambda _: None)


def test_there_is_room_for_replicas_on_the_nodes_of_their_pool() -> None:
    rollout = filled_in(*POOL, f"{ROLLOUT}.node_resource=pool", f"{ROLLOUT}.tensor_model_parallel_size=2")
    nodes = [{"pool": 1.0, "GPU": 4.0}, {"pool": 1.0, "GPU": 3.0}, {"GPU": 8.0}, {"pool": 1.0}]
    assert pool_settings.room(rollout, nodes, "GPU") == 3
    rollout.ray_resource = "NPU"
    assert pool_settings.room(rollout, [*nodes, {"pool": 1.0, "NPU": 8.0}, {"NPU": 8.0}], "GPU") == 4
    assert pool_settings.room(filled_in(*POOL), nodes, "GPU") == 8, "without a resource, as many as the settings say"


@pytest.mark.slow  # it imports the engine
def test_the_engine_of_a_replica_waits_for_weights_that_are_late_on_the_network() -> None:
    from verl_omni.workers.rollout.vllm_rollout.training_worker.replica_worker import RelayAdapter

    adapter = RelayAdapter.__new__(RelayAdapter)
    adapter.config = filled_in(
        *POOL,
        *(
            f"{ROLLOUT}.checkpoint_engine.engine_kwargs.{end}.deadline_seconds={seconds}"
            for end, seconds in (("naive", 5), ("omni_tcp", 7))
        ),
    )
    assert adapter._deadline() == 12
