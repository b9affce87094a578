"""Real peak of one update of a small model, counted by torch's allocator, and the estimate of `drl fit` for it."""

import gc
import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_omni.pipelines.registry import family_sizes

SETTINGS = (
    "data.train_files=none",
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.pipeline.height=192",
    "actor_rollout_ref.rollout.pipeline.width=192",
    "actor_rollout_ref.rollout.pipeline.num_inference_steps=3",
    "actor_rollout_ref.rollout.pipeline.max_sequence_length=32",
)


def make_model(family: str, folder: Path, changes: Mapping[str, Any] | None = None) -> None:
    """Write a small random model: the tiny model of the family with a larger transformer.

    Args:
        changes: changes to the transformer's configuration.
    """
    import diffusers

    from verl_omni.models.tiny import MAKERS

    MAKERS[family](folder, 0)
    name, config = family_sizes(family).MEASURED
    shutil.rmtree(folder / "transformer")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        component = getattr(diffusers, name).from_config({**config, **(changes or {})})
        torch.nn.init.normal_(component.proj_out.weight, std=0.1)  # diffusers initializes it to zero in some families
    component.save_pretrained(folder / "transformer")


def load_settings(folder: Path, overrides: Sequence[str], device: str = "cpu") -> Any:
    """The trainer's settings for a model folder, on a device of this type."""
    from verl_omni.trainer import startup
    from verl_omni.trainer.settings import configuration

    config = configuration.load([f"actor_rollout_ref.model.path={folder}", *SETTINGS, *overrides])
    if config.trainer.max_log_prob_difference is not None:
        config.trainer.max_log_prob_difference = math.inf  # the random batch has log-probabilities of no policy,
        config.trainer.max_velocity_difference = math.inf  # and velocities of none
    startup.fit_to_machine(config, has_accelerator=device != "cpu")
    return config


def estimated_peak(config: Any, device: str = "cpu") -> int:
    """Bytes that `drl fit` counts for the trainer in an update."""
    from verl_omni.trainer.memory_estimate import trainer_memory
    from verl_omni.trainer.memory_estimate.model_shapes import read
    from verl_omni.trainer.memory_estimate.sample_tensors import training_sample

    model = read(Path(config.actor_rollout_ref.model.path))
    memory = trainer_memory.measure(config, model, training_sample(config, model), ranks=1, accelerator=device != "cpu")
    state = memory.weights + memory.delayed_copies + memory.reference + memory.gradients + memory.optimizer
    state += memory.start_values if device == "cpu" else 0
    return state + memory.gathered + max(memory.inputs + memory.activations, memory.step_temporary)


def make_actor(config: Any, device: str) -> Any:
    """The real actor of these settings."""
    from verl.utils.config import omega_conf_to_dataclass

    from verl_omni.workers.actor.actor import DiffusionActor

    settings = config.actor_rollout_ref
    model = omega_conf_to_dataclass(settings.model)
    actor = omega_conf_to_dataclass(settings.actor)
    return DiffusionActor(model, actor, settings.rollout.n, device=torch.device(device))


def measure(config: Any, device: str = "cpu") -> dict[str, Any]:
    """Peak bytes, seconds and metrics of the real actor's second update, when the optimizer has its state.

    What exists before the update is counted as it is; during it torch's allocator counts, on the CPU every allocation
    and release, also those inside of operators. The batch of the caller does not count.
    """
    from verl_omni.workers.actor.device_flops import utilisation

    actor = make_actor(config, device)
    batch, arguments = training_batch(config, actor.algorithm)
    actor.update(dict(batch), **arguments)
    actor.take_flops()
    gc.collect()
    states = [value for state in actor.optimizer.state.values() for value in state.values()]
    kept = [weights for weights in (actor.policy.old, actor.policy.average) if weights is not None]
    copies = [value for weights in kept for value in weights.values.values()]
    base = list(actor.policy.base.parameters()) if actor.policy.base else []
    before = sum(t.nbytes for t in (*actor.module.parameters(), *actor.module.buffers(), *base, *states, *copies))
    seconds: list[float] = []

    def update() -> None:
        began = time.perf_counter()
        actor.update(dict(batch), **arguments)
        if device != "cpu":
            torch.get_device_module(device).synchronize()
        seconds.append(time.perf_counter() - began)

    peak = before + (allocated_peak(update) if device == "cpu" else peak_on(device, update))
    name = device if device == "cpu" else str(torch.get_device_module(device).get_device_name())
    return {"measured": peak, "seconds": seconds[0], "metrics": utilisation(actor.take_flops(), seconds[0], name)}


def peak_on(device: str, run: Any) -> int:
    """Largest number of bytes that an accelerator's allocator had beyond those before, while `run` runs."""
    memory = torch.get_device_module(device)
    memory.synchronize()
    memory.reset_peak_memory_stats()
    before: int = memory.memory_allocated()
    run()
    peak: int = memory.max_memory_allocated()
    return peak - before


def allocated_peak(run: Any) -> int:
    """Largest sum of the allocations of torch's CPU allocator, minus its releases, while `run` runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def training_batch(config: Any, algorithm: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A training batch of real random tensors, and the arguments of an update."""
    from types import SimpleNamespace

    from verl.utils.config import omega_conf_to_dataclass

    from verl_omni.trainer.memory_estimate.model_shapes import read
    from verl_omni.trainer.memory_estimate.sample_tensors import training_sample

    settings = config.actor_rollout_ref
    generator = torch.Generator().manual_seed(0)
    prompts = config.data.train_batch_size
    n = settings.rollout.n
    rows = prompts * n
    tensors = {}
    for name, tensor in training_sample(config, read(Path(settings.model.path))).items():
        if not tensor.is_meta:
            tensors[name] = tensor.expand(rows, *tensor.shape).clone()
        elif tensor.is_floating_point():
            tensors[name] = torch.randn(rows, *tensor.shape, generator=generator).to(tensor.dtype)
        else:
            tensors[name] = torch.ones(rows, *tensor.shape, dtype=tensor.dtype)
    samples = SimpleNamespace(
        tensors=tensors,
        scores=torch.arange(rows, dtype=torch.float32) + 0.5,
        groups=[str(row // n) for row in range(rows)],
    )
    loss = omega_conf_to_dataclass(settings.actor.diffusion_loss)
    return algorithm.training_batch(samples, loss, config, 0), algorithm.update_arguments(config, 1)


def compare(
    family: str, overrides: Sequence[str], device: str = "cpu", changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Estimated and measured peak of a small model of a family; `seconds` and `metrics` of the measured update.

    Args:
        changes: changes to the transformer's configuration.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_model(family, Path(folder) / "model", changes)
        config = load_settings(Path(folder) / "model", overrides, device)
        estimated = estimated_peak(config, device)
        measured = measure(config, device)
    return {"family": family, "estimated": estimated, "ratio": estimated / measured["measured"], **measured}
