"""One step of Flow-GRPO at the size of a real model: memory, agreement of engine and trainer, binding of the adapter.

    python benchmarks/real_size.py [--layers 24] [--out FILE]

The transformer and the VAE have the configuration of Stable Diffusion 3.5 medium and random weights in bfloat16; the
text encoders have the widths that the transformer expects, and one or two random layers. The model is written once, to
the user's cache. Engine, weight update and trainer are the real ones: an adapter for all attention and feed-forward
layers, activation checkpointing, guidance, one step of two samples of 256 x 256.

Memory is the sum over all processes of what no file backs: the weights are read from mapped files, whose pages the
kernel may drop. Its peak in each phase is compared with that of `drl fit`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memory import PeakMemory
from results import arguments, table, write

MODEL = "stabilityai/stable-diffusion-3.5-medium"
LAYERS = 24
TEXT_LENGTH = 77
TARGETS = (
    *(f"{attention}.{layer}" for attention in ("attn", "attn2") for layer in ("to_q", "to_k", "to_v", "to_out.0")),
    *(f"attn.{layer}" for layer in ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")),
    *(f"{part}.{layer}" for part in ("ff", "ff_context") for layer in ("net.0.proj", "net.2")),
)
SIZE, STEPS, WINDOW, SAMPLES, GUIDANCE, RANK = 256, 4, 2, 2, 4.5, 16
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
ENVIRONMENT = {"VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(os.cpu_count())}
# Phases of `drl fit`, by the call of the training loop that they are.
PHASES = {"generate_sequences": "generation", "update_actor": "update", "update_weights": "weight sync"}


def overrides(model: Path) -> list[str]:
    """Settings of the run."""
    return [
        f"actor_rollout_ref.model.path='{model}'", f"actor_rollout_ref.model.lora_rank={RANK}",
        f"actor_rollout_ref.model.target_modules=[{','.join(TARGETS)}]",
        "actor_rollout_ref.model.enable_gradient_checkpointing=true",
        f"{ROLLOUT}.dtype=bfloat16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bfloat16",
        f"{ROLLOUT}.pipeline.height={SIZE}", f"{ROLLOUT}.pipeline.width={SIZE}",
        f"{ROLLOUT}.pipeline.num_inference_steps={STEPS}", f"{ROLLOUT}.pipeline.guidance_scale={GUIDANCE}",
        f"{ROLLOUT}.pipeline.max_sequence_length={TEXT_LENGTH}", f"{ROLLOUT}.n={SAMPLES}",
        f"{ROLLOUT}.algo.sde_window_size={WINDOW}", f"{ROLLOUT}.algo.sde_window_range=[0,{STEPS}]",
        "data.train_batch_size=1", f"{ACTOR}.ppo_mini_batch_size=1", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
    ]  # fmt: skip


def make_model(folder: Path, layers: int) -> None:
    """Write the model, complete or not at all."""
    import torch
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel

    from verl_omni.models import text, tiny
    from verl_omni.trainer.memory_estimate.public_models import MODELS

    _, components, _ = MODELS[MODEL]
    config = {**components["transformer"][1], "num_layers": layers}
    config["dual_attention_layers"] = [layer for layer in config["dual_attention_layers"] if layer < layers]
    joint, pooled = config["joint_attention_dim"], config["pooled_projection_dim"]
    torch.manual_seed(0)
    partial = folder.with_suffix(".partial")
    torch.set_default_dtype(torch.bfloat16)
    transformer = SD3Transformer2DModel.from_config(config)
    torch.nn.init.normal_(transformer.proj_out.weight, std=0.02)  # diffusers initializes it to zero
    transformer.save_pretrained(partial / "transformer")
    del transformer
    # Of its `config.json`, what determines no shape.
    vae = {**components["vae"][1], "scaling_factor": 1.5305, "shift_factor": 0.0609}
    AutoencoderKL.from_config(vae).save_pretrained(partial / "vae")
    torch.set_default_dtype(torch.float32)
    clip, t5 = text.clip_tokenizer(tiny.WORDS, TEXT_LENGTH), text.t5_tokenizer(tiny.WORDS, TEXT_LENGTH)
    first = pooled // 16 * 6  # as CLIP-L and CLIP-bigG share the pooled width
    parts = {
        "text_encoder": text.clip_encoder(clip, first, TEXT_LENGTH, seed=1),
        "text_encoder_2": text.clip_encoder(clip, pooled - first, TEXT_LENGTH, seed=2),
        "text_encoder_3": text.t5_encoder(t5, joint, seed=3),
        "tokenizer": clip, "tokenizer_2": clip, "tokenizer_3": t5,
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
    }  # fmt: skip
    index: dict[str, Any] = {"_class_name": "StableDiffusion3Pipeline"}
    for name, part in parts.items():
        (part.bfloat16() if name.startswith("text_encoder") else part).save_pretrained(partial / name)
        library = "diffusers" if name == "scheduler" else "transformers"
        index[name] = [library, type(part).__name__]
    for name in ("transformer", "vae"):
        index[name] = ["diffusers", components[name][0]]
    (partial / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    partial.rename(folder)


class Timed:
    """An object that records when each call of some of its methods began and ended."""

    def __init__(self, target: Any, calls: list[tuple[str, float, float]]) -> None:
        self._target, self._calls = target, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._timed(PHASES[name], found) if name in PHASES else found

    def _timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*args, **kwargs)
            finally:
                self._calls.append((phase, began, time.monotonic()))

        return run


def add_worker_method(_server: Any) -> None:
    """Add a method that counts the modules of the adapter; runs in the server process, which is also the worker's."""
    from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID
    from verl_omni.weight_sync import adapter_checks
    from verl_omni.workers.rollout.vllm_rollout.utils import vLLMOmniColocateWorkerExtension

    def bound_modules(self: Any) -> int:
        manager = self.lora_manager
        known = adapter_checks.lora_targets(manager._lora_modules, manager._packed_modules_mapping)
        return int(adapter_checks.check_binding(manager._registered_adapters[VLLM_LORA_INT_ID].loras, known))

    vLLMOmniColocateWorkerExtension.bound_modules = bound_modules


def train(model: Path, out: Path) -> None:
    """Run the step, and write what this process measured."""
    from stack import running

    calls: list[tuple[str, float, float]] = []
    with running(*overrides(model)) as run, tempfile.TemporaryDirectory() as folder:
        import ray

        from verl_omni.trainer import main_diffusion
        from verl_omni.trainer.loop import DiffusionTrainer
        from verl_omni.trainer.run_folder import RunFolder

        parts = {name: Timed(getattr(run.stack, name), calls) for name in ("workers", "agent_loop", "weights")}
        made = RunFolder(Path(folder), lambda event: print(main_diffusion.format_event(event), flush=True))
        made.start(run.config, resumed_from=None)
        prompts, _ = main_diffusion._prompts(run.config)
        trainer = DiffusionTrainer(
            run.config, dataclasses.replace(run.stack, **parts), made, prompts, None, stop_requested=lambda: False
        )
        trainer.fit(None)
        (server,) = run.stack.servers.server_handles
        ray.get(server.__ray_call__.remote(add_worker_method))
        (bound,) = ray.get(server.collective_rpc.remote("bound_modules"))
        (line,) = [line for line in made.metrics() if "actor/loss" in line]
        (adapter,) = made.path.glob("checkpoints/*/lora/*.safetensors")
        out.write_text(json.dumps({"calls": calls, "bound": bound, "trained": _modules(adapter), "metrics": line}))


def _modules(adapter: Path) -> int:
    """Modules that an adapter's file has tensors of."""
    from safetensors import safe_open

    with safe_open(adapter, "pt") as opened:
        return len(opened.keys()) // 2


def estimated(model: Path) -> dict[str, Any]:
    """What `drl fit` prints about the run as JSON."""
    settings = [f"data.train_files='{__file__}'", "trainer.total_training_steps=1", "reward.scorer=brightness"]
    command = [sys.executable, "-m", "verl_omni.trainer.memory_estimate", "--cpu", *settings, *overrides(model)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def measure(layers: int, cache: Path) -> dict[str, Any]:
    """Make the model unless it is there, run the step in processes of its own, and compare."""
    model = cache / f"sd3.5-medium-{layers}"
    this = [sys.executable, __file__, "--layers", str(layers)]
    if not model.is_dir():
        subprocess.run([*this, "--make", str(model)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        began = time.monotonic()
        process = subprocess.Popen([*this, "--train", str(model), str(out)], env={**os.environ, **ENVIRONMENT})
        with PeakMemory(process.pid) as peak:
            if process.wait() != 0:
                raise SystemExit("the run failed")
        seconds = time.monotonic() - began
        run = json.loads(out.read_text())
    expected = estimated(model)
    rows = [
        {
            "phase": phase["name"], "estimated": phase["bytes"], "parts": phase["parts"],
            "measured": (found := peak.between(spans := _spans(run["calls"], phase["name"]))),
            "ratio": phase["bytes"] / found, "seconds": sum(end - start for start, end in spans),
        }
        for phase in expected["host"]
    ]  # fmt: skip
    return {
        "layers": layers, "parameters": expected["parameters"], "trained_parameters": expected["trained_parameters"],
        "phases": rows, "peak_bytes": peak.without_files, "peak_bytes_with_files": peak.bytes, "seconds": seconds,
        "modules": run["trained"], "bound_modules": run["bound"], "metrics": run["metrics"],
    }  # fmt: skip


def _spans(calls: list[tuple[str, float, float]], phase: str) -> list[tuple[float, float]]:
    return [(start, end) for name, start, end in calls if name == phase]


def problems(run: Mapping[str, Any]) -> list[str]:
    """What is not as it should be."""
    found = []
    if run["bound_modules"] != run["modules"]:
        found.append(f"the adapter has {run['modules']} modules, and {run['bound_modules']} are bound")
    highest = max(row["estimated"] for row in run["phases"]) / max(row["measured"] for row in run["phases"])
    if not 0.85 < highest < 1.15:
        found.append(f"the estimate is {highest:.2f} of the measured peak")
    if run["metrics"]["actor/optimizer_steps"] != 1:
        found.append("no optimizer step was taken")
    return found


def main() -> int:
    """Measure, write and print. Returns 1 if something is not as it should be."""
    parser = arguments(__doc__, "real_size", repeats=0)
    parser.add_argument("--layers", type=int, default=LAYERS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omni-operator"
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the model, 4.6 GB")
    parser.add_argument("--make", type=Path, help="only write the model, to this folder")
    parser.add_argument("--train", type=Path, nargs=2, help="only run the step: model, and file for the results")
    chosen = parser.parse_args()
    if chosen.make:
        make_model(chosen.make, chosen.layers)
        return 0
    if chosen.train:
        train(*chosen.train)
        return 0
    found = measure(chosen.layers, chosen.cache)
    write(chosen.out, [found])
    table(found["phases"], ["phase", "estimated", "measured", "ratio", "seconds"])
    print(f"{found['bound_modules']} of {found['modules']} modules bound; {found['metrics']}")
    for problem in (wrong := problems(found)):
        print(problem, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
