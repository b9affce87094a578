"""`drl fit` with standalone replicas: both pools against the estimate of shared devices, and what an update takes."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.ml import smallest_job
from tests.ml.trainer.memory_estimate.small_jobs import job
from verl_omni.trainer.device_checks import measured_update
from verl_omni.trainer.memory_estimate import __main__ as program
from verl_omni.trainer.memory_estimate import advice, job_estimate
from verl_omni.trainer.memory_estimate.engine_memory import EngineMemory
from verl_omni.trainer.memory_estimate.estimate import DEVICE_CONTEXT, RESERVE, Estimate, Setup, estimate
from verl_omni.trainer.memory_estimate.pool_estimate import RolloutPool, estimate_pools, network_bucket
from verl_omni.trainer.memory_estimate.trainer_memory import TrainerMemory
from verl_omni.weight_sync.buckets import BucketFiller

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MIB = 1 << 20


def numbers(kind: Any, **given: Any) -> st.SearchStrategy[Any]:
    """Instances whose other fields are small numbers."""
    return st.builds(
        kind,
        **{field.name: st.integers(1, 1000) for field in dataclasses.fields(kind) if field.name not in given},
        **given,
    )


ENGINES = numbers(
    EngineMemory, passes=st.fixed_dictionaries({name: st.integers(1, 1000) for name in ("encode", "step")})
)
TRAINERS = numbers(TrainerMemory)
FLAGS = ("sends_adapter", "offloads_weights", "offloads_optimizer", "copies_checkpoints", "regathers", "forks")


@st.composite
def setups(draw: st.DrawFn, *, accelerator: bool) -> Setup:
    """Setups whose engines stay awake; without accelerators nothing is offloaded."""
    nodes = draw(st.integers(1, 3))
    ranks = draw(st.integers(1, 4))
    flags = {name: draw(st.booleans()) for name in FLAGS}
    if not accelerator:
        flags |= {"offloads_weights": False, "offloads_optimizer": False}
    drawn_setup: Setup = draw(
        numbers(
            Setup,
            nodes=st.just(nodes),
            ranks=st.just(nodes * ranks),
            accelerator=st.just(accelerator),
            sleeps=st.just(False),
            ahead=st.just(0),
            pairs=st.just(0),
            evaluates=st.just(True),
            **{name: st.just(value) for name, value in flags.items()},
        )
    )
    return drawn_setup


def parts(found: Estimate, phase: str, where: str = "device") -> Counter[str]:
    """Bytes by part of one phase; none if the pool has no such phase."""
    return Counter(
        next((dict(phase_parts.parts) for phase_parts in getattr(found, where) if phase_parts.name == phase), {})
    )


@given(setups(accelerator=True), TRAINERS, ENGINES)
def test_devices_of_both_pools_together_have_the_parts_of_a_shared_device(
    setup: Setup, trainer: TrainerMemory, engine: EngineMemory
) -> None:
    pool = RolloutPool(nodes=setup.nodes, workers=setup.ranks_per_node, replica_size=1, in_flight=1)
    shared = estimate(setup, trainer, engine)
    trainer_pool, standalone = estimate_pools(setup, pool, trainer, engine)
    # While the trainer updates, an engine keeps what it had; it is also what receives weights over the network.
    for phase, engines in (("generation", "generation"), ("update", "generation"), ("weight sync", "weight sync")):
        together = parts(trainer_pool, phase) + parts(standalone, engines)
        assert together == parts(shared, phase) + Counter({"device contexts": DEVICE_CONTEXT}), phase
    assert max(each.total for each in (*trainer_pool.device, *standalone.device)) <= max(
        each.total for each in shared.device
    )


@given(setups(accelerator=False), TRAINERS, ENGINES, st.integers(1, 3))
def test_without_accelerators_the_hosts_of_both_pools_have_at_least_the_parts_of_a_shared_host(
    setup: Setup, trainer: TrainerMemory, engine: EngineMemory, replica_size: int
) -> None:
    pool = RolloutPool(setup.nodes, setup.ranks_per_node * replica_size, replica_size, in_flight=5)
    shared = estimate(setup, trainer, engine)
    trainer_pool, standalone = estimate_pools(setup, pool, trainer, engine)
    assert (trainer_pool.device, standalone.device) == ((), ())
    for phase in ("generation", "weight sync"):
        together = parts(trainer_pool, phase, "host") + parts(standalone, phase, "host")
        assert {name: size for name, size in parts(shared, phase, "host").items() if together[name] < size} == {}
    update = parts(trainer_pool, "update", "host")
    assert {"weights", "activations", "processes"} <= update.keys() and "VAE" not in update


@given(setups(accelerator=True), TRAINERS, ENGINES, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_host_memory_and_bytes_of_an_update_grow_with_workers_and_replicas(
    setup: Setup, trainer: TrainerMemory, engine: EngineMemory, nodes: int, replicas: int, size: int
) -> None:
    pool = RolloutPool(nodes, replicas * size, size, in_flight=7)
    trainer_pool, standalone = estimate_pools(setup, pool, trainer, engine)
    assert trainer_pool.moved["weights to each replica"] == size * trainer.sent
    assert trainer_pool.moved["weights to all replicas"] == nodes * replicas * size * trainer.sent
    bucket = network_bucket(setup, trainer)
    assert parts(trainer_pool, "weight sync", "host")["buckets to send"] == 2 * bucket, (
        "rank 0, whatever the number of replicas"
    )
    assert parts(standalone, "weight sync", "host")["received buckets"] == replicas * size * bucket
    assert parts(standalone, "generation", "host")["samples in flight"] == replicas * 7
    # A worker that receives weights and one of the engine for each accelerator, and a server for each replica.
    assert parts(standalone, "generation", "host")["processes"] == (2 * size + 1) * replicas * setup.process
    later = dataclasses.replace(setup, ahead=2)
    grown = parts(estimate_pools(later, pool, trainer, engine)[0], "update", "host")
    assert grown["trajectories"] == parts(trainer_pool, "update", "host")["trajectories"] + 2 * setup.stored


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 600))
def test_no_bucket_of_an_update_is_larger_than_estimated(sizes: list[int], limit: int) -> None:
    tensors = [(str(number), torch.zeros(size * 16, dtype=torch.uint8)) for number, size in enumerate(sizes)]
    filler = BucketFiller(iter(tensors), limit * 16)
    filled = []
    while (bucket := filler.fill()) is not None:
        filled.append(sum(part.numel() for part in bucket[1]))
    fields = {field.name: 1 for field in dataclasses.fields(TrainerMemory)}
    trainer = TrainerMemory(**{**fields, "sent": 16 * sum(sizes), "largest_sent": 16 * max(sizes)})
    setup = Setup(**{**{field.name: 1 for field in dataclasses.fields(Setup)}, "bucket": 16 * limit})  # type: ignore[arg-type]
    assert max(filled) <= network_bucket(setup, trainer) <= max(16 * limit, *filled)


STANDALONE = (f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["adapter", "all weights, in the engine's dtype"])
def test_the_bytes_of_an_update_are_those_that_the_actor_sends(tmp_path: Path, what: str) -> None:
    kind, overrides = ("lora", ()) if what == "adapter" else ("full", ("actor_rollout_ref.model.lora_rank=0",))
    measured_update.make_model("sd3", tmp_path / "model")
    config = job(tmp_path / "model", *STANDALONE, *overrides, f"{ROLLOUT}.dtype=bfloat16", accelerator=False)
    result = job_estimate.JobEstimator(accelerator=False).estimate(config)
    actor = measured_update.make_actor(config, "cpu")
    sizes = [tensor.nbytes for _, tensor in actor.weights(kind, dtype=torch.bfloat16 if kind == "full" else None)]
    assert result.estimate.moved["weights to each replica"] == sum(sizes)
    assert result.trainer.largest_sent == max(sizes)


@pytest.mark.slow
def test_pools_of_different_devices_have_different_verdicts(tiny: Path) -> None:
    # Nothing is left to change for the engines.
    config = job(tiny, *STANDALONE, f"{ROLLOUT}.max_num_seqs=1")
    free = program.describe(config, None, None, accelerator=True)["pools"]
    assert {name: (pool["fits"], pool["advice"]) for name, pool in free.items()} == {
        "trainer": (None, []),
        "rollout": (None, []),
    }
    enough = {name: int(pool["peak"] / (1 - RESERVE)) + 1 for name, pool in free.items()}
    pools = program.describe(config, enough["trainer"], enough["rollout"] - 2, accelerator=True)["pools"]
    assert {name: (pool["fits"], pool["capacity"], pool["advice"]) for name, pool in pools.items()} == {
        "trainer": (True, enough["trainer"], []),
        "rollout": (False, enough["rollout"] - 2, []),
    }


@pytest.mark.parametrize("concerns", [advice.of_trainer, advice.of_rollout])
def test_only_settings_that_concern_a_pool_are_tried_for_it(concerns: Any) -> None:
    config = smallest_job.load(*STANDALONE)
    tried: list[dict[str, Any]] = []

    def phases_of(other: Any) -> dict[str, int]:
        tried.append(
            {
                change.setting: change.value
                for change in advice.changes(config)
                if not concerns(change.setting) and OmegaConf.select(other, change.setting) == change.value
            }
        )
        return {"update": 100 - len(tried) * 5}

    advised = advice.advise(config, {"update": 100}, phases_of, lambda _: False, concerns)
    assert len(advised) > 1 and all(concerns(step.change.setting) for step in advised)
    assert tried == [{}] * len(tried), "settings of the other pool stay"


def test_engines_of_their_own_may_be_split_and_never_sleep() -> None:
    config = smallest_job.load(
        f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4", f"{ROLLOUT}.tensor_model_parallel_size=2"
    )

    def advised() -> dict[str, Any]:
        return {change.setting.removeprefix(f"{ROLLOUT}."): change.value for change in advice.changes(config)}

    assert advised()["tensor_model_parallel_size"] == 4
    assert not {"free_cache_engine", "enable_sleep_mode"} & advised().keys()
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = 4
    assert "tensor_model_parallel_size" not in advised()


@pytest.mark.slow
def test_without_accelerators_one_machine_needs_memory_for_both_pools(tiny: Path) -> None:
    config = job(tiny, *STANDALONE, accelerator=False)
    document = program.describe(config, 1 << 50, accelerator=False)
    peaks = {name: max(phase["bytes"] for phase in pool["host"]) for name, pool in document["pools"].items()}
    assert document["peak"] == peaks["trainer"] + peaks["rollout"] and document["fits"] is True
    assert all("fits" not in pool for pool in document["pools"].values())
    two = program.describe(
        job(tiny, f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=1", accelerator=False),
        document["peak"],
        accelerator=False,
    )
    assert two["fits"] is False and two["peak"] > document["peak"], "another pod on the same machine"
