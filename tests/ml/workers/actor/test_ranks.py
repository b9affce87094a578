"""The trained model on 1, 2 and 4 ranks (gloo, NCCL): the update of one process, and how often gradients are reduced.

The ranks are forked from a process that has imported everything, and each runs this file.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from ml.workers.tiny_actor import (
    SAMPLER,
    make_actor,
    model_settings,
    recorded_steps,
    relative_difference,
    smooth_steps,
    weights_of,
)
from verl_omni.workers.actor import parallel
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.config import DiffusionFSDPConfig, DiffusionMixedPrecisionConfig

pytestmark = pytest.mark.slow

ROWS = 8
STEPS = 2
LAYERS = 2
HALF = {"mixed_precision": DiffusionMixedPrecisionConfig(param_dtype="bfloat16")}
COMPILED = "compiled in bfloat16 with a KL on 2"
# Name -> (ranks, rank of the adapter or 0 for all weights, settings of FSDP, and whether there is a KL loss).
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    # What can be tried of NCCL with one device.
    "all weights on 1": (1, 0, {}),
    "bfloat16 with a KL on 1": (1, 4, {"use_kl_loss": True, **HALF}),
    "adapter on 2": (2, 4, {}),
    "all weights on 2": (2, 0, {}),
    "each reduced on 2": (2, 0, {"use_no_sync_for_gradient_accumulation": False}),
    "prefetched on 2": (2, 0, {"forward_prefetch": True}),
    "bfloat16 on 2": (2, 4, HALF),
    COMPILED: (2, 4, {"use_torch_compile": True, "use_kl_loss": True, **HALF}),
    "all weights in bfloat16 with a KL on 2": (2, 0, {"use_kl_loss": True, **HALF}),
    "whole layers with a KL on 2": (2, 0, {"use_kl_loss": True, "reshard_after_forward": False}),
    "all weights on 4": (4, 0, {}),
    "two copies with a KL on 4": (4, 0, {"use_kl_loss": True, "fsdp_size": 2}),
    "two copies on 4": (4, 0, {"fsdp_size": 2}),
    "two copies in bfloat16 on 4": (4, 4, {"fsdp_size": 2, **HALF}),
}


SAVED = {1: "all weights on 1", 2: "all weights on 2"}
RESUMED = ("all weights on 4", "two copies on 4")


def state_folder(model: Path, ranks: int = 2) -> Path:
    """Where so many ranks save their state."""
    return model.with_name(f"state-{ranks}")


def background_folder(model: Path, ranks: int) -> Path:
    """Where they write the same state while they train."""
    return model.with_name(f"background-{ranks}")


class CapturedActor(DiffusionActor):
    """An actor whose compiled layers are graphs of torch's own kernels: compilers need a minute for others."""

    def _change_layers(self, module: Any) -> None:
        if self.config.fsdp_config.use_torch_compile:
            parallel.compile_layers(module, self.model_config.fsdp_layer_prefixes, backend="aot_eager")


def make(
    folder: Path, rank: int, fsdp: dict[str, Any], mesh: Any = None, device: torch.device | None = None
) -> DiffusionActor:
    model = model_settings(folder, ["attn.to_q", "attn.to_v", "ff.net.2"], rank=rank, checkpointing=True)
    kl = fsdp.get("use_kl_loss", False)
    fsdp = {name: value for name, value in fsdp.items() if name != "use_kl_loss"}
    return make_actor(
        model,
        samples=1,
        actor_class=CapturedActor,
        mesh=mesh,
        device=device,
        use_kl_loss=kl,
        kl_loss_coef=1e3,
        ppo_mini_batch_size=ROWS,
        ppo_micro_batch_size_per_gpu=1,
        optim=smooth_steps(lr=0.1 if rank else 1e-3),
        fsdp_config=DiffusionFSDPConfig(**fsdp),
    )


@cache
def batch() -> dict[str, Tensor]:
    return {
        **recorded_steps(ROWS, [0.9, 0.6, 0.3]),
        "advantages": torch.linspace(-1, 1, ROWS),
        # So that the ratio is far inside the clip range, where the loss is smooth.
        "rollout_log_probs": torch.full((ROWS, STEPS), -10.0),
    }


COMPUTATIONS = {torch.ops.aten.addmm, torch.ops.aten.mm, torch.ops.aten.bmm}


class Collectives(TorchDispatchMode):
    """Counts the collectives in this block, by name, and the gathers between which nothing is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.gathers_in_a_row: list[int] = [0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            self.gathers_in_a_row[-1] += "allgather" in name
        elif func.overloadpacket in COMPUTATIONS and self.gathers_in_a_row[-1]:
            self.gathers_in_a_row.append(0)
        return func(*args, **(kwargs or {}))


def updated(actor: DiffusionActor, share: slice) -> dict[str, Any]:
    """Two updates. Returns gradient norms, the trained weights before and after them, the collectives of the second
    one, and new graphs.
    """
    counters.clear()
    before = weights_of(actor)
    # Dynamo captures no graph while operators are counted.
    count = nullcontext if actor.config.fsdp_config.use_torch_compile else lambda mode: mode
    collectives = Collectives()
    forward = Collectives()
    data = {name: tensor[share] for name, tensor in batch().items()}
    norms = [actor.update(data, **SAMPLER)["actor/grad_norm"]]
    with count(collectives):
        norms.append(actor.update(data, **SAMPLER)["actor/grad_norm"])
    with torch.no_grad(), count(forward):
        on_device = {name: tensor.to(actor.device) for name, tensor in data.items()}
        actor.policy.velocity(on_device, on_device["all_latents"][:, 0], on_device["all_timesteps"][:, 0], 1.0)
    return {
        "norms": norms,
        "before": before,
        "weights": weights_of(actor),
        "counts": collectives.counts,
        "gathers": forward.gathers_in_a_row,
        "graphs": counters["stats"]["unique_graphs"],
    }


def find(rank: int, ranks: int, folder: Path, kind: str) -> dict[str, Any]:
    """The updates of all cases of this number of ranks, by name; each rank is on its device of this kind."""
    rows = ROWS // ranks
    share = slice(rank * rows, (rank + 1) * rows)
    updates = {}
    for name, (wanted, adapter, fsdp) in CASES.items():
        if wanted != ranks:
            continue
        mesh = parallel.make_mesh(kind, ranks, fsdp.get("fsdp_size", -1))
        device = parallel.device_of(mesh)
        actor = make(folder, adapter, fsdp, mesh, device)
        updates[name] = updated(actor, share)
        states = {f"resumed with {name}": state_folder(folder)} if name in RESUMED else {}
        if name == SAVED.get(ranks):
            actor.save(state_folder(folder, ranks))
            staged = actor.stage(background_folder(folder, ranks))
            with ThreadPoolExecutor(1) as thread:  # collectives of the write and of the updates interleave
                written = thread.submit(staged)
                updates[f"unbroken on {ranks}"] = updated(actor, share)
                written.result()
            states[f"saved on {ranks}"] = state_folder(folder, ranks)
            states[f"written in the background on {ranks}"] = background_folder(folder, ranks) / "state"
        for way, state in states.items():
            resumed = make(folder, adapter, fsdp, mesh, device)
            resumed.load(state)
            updates[way] = updated(resumed, share)
    return updates


@pytest.fixture(scope="module")
def found(model_folder: Path, run_ranks: Any, found_on_devices: Any) -> Any:
    """What rank 0 found, by the name of the case."""
    for ranks in found_on_devices.ranks:
        found_on_devices |= run_ranks(__file__, ranks, model_folder, found_on_devices.kind)[0]
    return found_on_devices


@pytest.fixture(scope="module")
def alone(model_folder: Path, found_on_devices: Any) -> Any:
    """What one process finds for a case with the same rows."""
    device = torch.device(found_on_devices.kind)

    @cache
    def one(name: str) -> dict[str, Any]:
        _, adapter, fsdp = CASES[name]
        actor = make(model_folder, adapter, {**fsdp, "use_torch_compile": False}, device=device)
        return updated(actor, slice(0, ROWS))

    return one


@pytest.mark.parametrize("name", CASES)
def test_ranks_give_the_update_of_one_process(found: dict[str, Any], alone: Any, name: str) -> None:
    """The update differs by at most 0.1%, by rounding; in bfloat16, whose gradients are rounded to 0.4%, by 10%."""
    sharded = found[name]
    single = alone(name)
    half = "bfloat16" in name
    assert sharded["norms"] == pytest.approx(single["norms"], rel=2e-2 if half else 1e-3)
    assert relative_difference(single["before"], single["weights"], sharded["weights"]) < (0.1 if half else 1e-3)


def test_compiled_layers_share_no_more_graphs_than_they_need(found: dict[str, Any], alone: Any) -> None:
    """The last layer differs: it does not update the text. Both run with gradients, without, and as the base."""
    assert found[COMPILED]["graphs"] == LAYERS * 3
    assert alone(COMPILED)["graphs"] == 0


def reductions(found: dict[str, Any]) -> int:
    return sum(count for operation, count in found["counts"].items() if "reduce_scatter" in operation)


def test_gradients_are_reduced_once_in_an_optimizer_step(found: dict[str, Any]) -> None:
    """Once for each layer and once for the rest of the model; otherwise after each of the micro-batches."""
    micro_batches = ROWS // 2 * STEPS
    assert reductions(found["all weights on 2"]) == LAYERS + 1
    assert reductions(found["each reduced on 2"]) == (LAYERS + 1) * micro_batches


def test_the_next_layer_is_gathered_before_a_layer_is_computed(found: dict[str, Any]) -> None:
    """In a forward pass: the rest of the model, then the layers, the second of which was gathered with the first."""
    assert found["all weights on 2"]["gathers"] == [1, 1, 1, 0]
    assert found["prefetched on 2"]["gathers"] == [1, 2, 0]


def test_copies_of_the_model_are_sharded_over_fewer_ranks(found: dict[str, Any]) -> None:
    """Each layer's gradient is scattered within a copy, then summed over the copies."""
    sums = {name: found[name]["counts"].get("allreduce_", 0) for name in ("all weights on 4", "two copies on 4")}
    assert reductions(found["two copies on 4"]) == LAYERS + 1
    assert sums == {"all weights on 4": 0, "two copies on 4": LAYERS + 1}


@pytest.mark.parametrize("name", RESUMED)
def test_other_ranks_resume_a_checkpoint(found: dict[str, Any], name: str) -> None:
    """4 ranks resume from the shards of 2 and take the same steps, to 0.1%."""
    unbroken = found["unbroken on 2"]
    resumed = found[f"resumed with {name}"]
    assert resumed["norms"] == pytest.approx(unbroken["norms"], rel=1e-3)
    assert relative_difference(unbroken["before"], unbroken["weights"], resumed["weights"]) < 1e-3


@pytest.mark.parametrize("way", ["saved", "written in the background"])
@pytest.mark.parametrize("ranks", SAVED)
def test_ranks_resume_what_they_wrote_also_while_they_trained(found: dict[str, Any], ranks: int, way: str) -> None:
    """The state at the time of the save, bit for bit."""
    unbroken = found[f"unbroken on {ranks}"]
    resumed = found[f"{way} on {ranks}"]
    assert resumed["norms"] == unbroken["norms"]
    assert all(torch.equal(tensor, resumed["weights"][name]) for name, tensor in unbroken["weights"].items())


def test_one_process_reads_the_shards_of_two(found: dict[str, Any], model_folder: Path) -> None:
    saved = found[SAVED[2]]["weights"]  # skips without a device for each rank
    actor = make(model_folder, 0, {})
    actor.load(state_folder(model_folder))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in actor.weights("full"))
    assert len(list(state_folder(model_folder).glob("*.distcp"))) == 2, "each rank writes its own shards"
