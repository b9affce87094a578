"""Flow-GRPO at the size of a real model: memory, agreement of engine and trainer, binding of the adapter.

    python benchmarks/real_size.py [--layers 24] [--gpu] [--out FILE]

The transformer and the VAE have the configuration of Stable Diffusion 3.5 medium and random weights in bfloat16. The
model is written once, to the user's cache. Engine, weight update and trainer are the real ones: an adapter for all
attention and feed-forward layers, activation checkpointing, guidance.

- On the CPU, the text encoders have the widths that the transformer expects, and one or two random layers; one step of
  two samples of 256 x 256. Memory is the sum over all processes without file-backed pages: the weights are read from
  mapped files, whose pages the kernel may drop.
- With `--gpu`, on one NVIDIA GPU, the text encoders are complete, too; some steps of 32 samples of 512 x 512. Memory is
  what the driver says is used, less what was used before.

The peak of each phase is compared with the estimate of `drl fit`.
"""

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

from memory import PeakDeviceMemory, PeakMemory
from results import ROOT, arguments, results_file, table, write

MODEL = "stabilityai/stable-diffusion-3.5-medium"
LAYERS = 24
TEXT_LENGTH = 77
ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
TARGETS = (
    *(f"{attention}.{layer}" for attention in ("attn", "attn2") for layer in ("to_q", "to_k", "to_v", "to_out.0")),
    *(f"attn.{layer}" for layer in ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")),
    *(f"{part}.{layer}" for part in ("ff", "ff_context") for layer in ("net.0.proj", "net.2")),
)
GUIDANCE = 4.5
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
# Phases of `drl fit`, by the call of the training loop that they are.
PHASES = {"generate_sequences": "generation", "update_actor": "update", "update_weights": "weight sync"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is trained, and where.

    Attributes:
        size: height and width of an image in pixels.
        micro: samples that are trained at once. batch: samples that are generated at once.
        complete: whether the text encoders have all their layers.
    """

    training_steps: int
    prompts: int
    samples: int
    size: int
    denoising_steps: int
    rank: int
    micro: int
    batch: int
    text_length: int
    complete: bool
    environment: Mapping[str, str]


CPU = Scale(
    training_steps=1,
    prompts=1,
    samples=2,
    size=256,
    denoising_steps=4,
    rank=16,
    micro=1,
    batch=2,
    text_length=77,
    complete=False,
    environment={"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": str(os.cpu_count())},
)
# As in examples/sd35-ocr-grpo.yaml, with fewer prompts.
GPU = Scale(
    training_steps=2,
    prompts=2,
    samples=16,
    size=512,
    denoising_steps=10,
    rank=32,
    micro=8,
    batch=16,
    text_length=256,
    complete=True,
    environment={},
)
WINDOW = 2


def overrides(model: Path, scale: Scale) -> list[str]:
    """Settings of the run."""
    return [
        f"actor_rollout_ref.model.path='{model}'",
        f"actor_rollout_ref.model.lora_rank={scale.rank}",
        f"actor_rollout_ref.model.target_modules=[{','.join(TARGETS)}]",
        "actor_rollout_ref.model.enable_gradient_checkpointing=true",
        f"{ROLLOUT}.dtype=bfloat16",
        f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bfloat16",
        f"{ROLLOUT}.pipeline.height={scale.size}",
        f"{ROLLOUT}.pipeline.width={scale.size}",
        f"{ROLLOUT}.pipeline.num_inference_steps={scale.denoising_steps}",
        f"{ROLLOUT}.pipeline.guidance_scale={GUIDANCE}",
        f"{ROLLOUT}.max_num_seqs={scale.batch}",
        f"{ROLLOUT}.pipeline.max_sequence_length={scale.text_length}",
        f"{ROLLOUT}.n={scale.samples}",
        f"{ROLLOUT}.algo.sde_window_size={WINDOW}",
        f"{ROLLOUT}.algo.sde_window_range=[0,{scale.denoising_steps}]",
        f"data.train_batch_size={scale.prompts}",
        f"{ACTOR}.ppo_mini_batch_size={scale.prompts}",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={scale.micro}",
        f"trainer.total_training_steps={scale.training_steps}",
        f"data.train_files='{ROOT / 'examples' / 'prompts' / 'shapes_train.jsonl'}'",
    ]


def make_model(folder: Path, layers: int, *, complete: bool) -> None:
    """Write the model, or nothing if that fails. Random numbers are drawn on a GPU if there is one."""
    import torch
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel

    from verl_omni.models import text, tiny_parts
    from verl_omni.trainer.memory_estimate.public_models import MODELS

    components = MODELS[MODEL].components
    config = {**components["transformer"][1], "num_layers": layers}
    config["dual_attention_layers"] = [layer for layer in config["dual_attention_layers"] if layer < layers]
    joint = config["joint_attention_dim"]
    pooled = config["pooled_projection_dim"]
    torch.manual_seed(0)
    partial = folder.with_suffix(".partial")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        transformer = SD3Transformer2DModel.from_config(config)
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.02)  # diffusers initializes it to zero
        transformer.save_pretrained(partial / "transformer")
        del transformer
        # The values of its `config.json` that determine no shape.
        vae = {**components["vae"][1], "scaling_factor": 1.5305, "shift_factor": 0.0609}
        AutoencoderKL.from_config(vae).save_pretrained(partial / "vae")
        encoders = [_encoder(*components[name]) for name in ENCODERS] if complete else []
    torch.set_default_dtype(torch.float32)
    clip = text.clip_tokenizer(tiny_parts.WORDS, TEXT_LENGTH)
    t5 = text.t5_tokenizer(tiny_parts.WORDS, TEXT_LENGTH)
    first = pooled // 16 * 6  # as CLIP-L and CLIP-bigG share the pooled width
    encoders = encoders or [
        text.clip_encoder(clip, first, TEXT_LENGTH, seed=1),
        text.clip_encoder(clip, pooled - first, TEXT_LENGTH, seed=2),
        text.t5_encoder(t5, joint, seed=3),
    ]
    parts = {
        **dict(zip(ENCODERS, encoders, strict=True)),
        "tokenizer": clip,
        "tokenizer_2": clip,
        "tokenizer_3": t5,
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
    }
    index: dict[str, Any] = {"_class_name": "StableDiffusion3Pipeline"}
    for name, part in parts.items():
        (part.bfloat16() if name.startswith("text_encoder") else part).save_pretrained(partial / name)
        library = "diffusers" if name == "scheduler" else "transformers"
        index[name] = [library, type(part).__name__]
    for name in ("transformer", "vae"):
        index[name] = ["diffusers", components[name][0]]
    (partial / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    partial.rename(folder)


def _encoder(name: str, settings: Mapping[str, Any]) -> Any:
    """A random text encoder with a public model's configuration."""
    import transformers

    encoder_class = getattr(transformers, name)
    return encoder_class(encoder_class.config_class(**settings)).eval()


class Timed:
    """An object that records when each call of some of its methods began and ended."""

    def __init__(self, target: Any, calls: list[tuple[str, float, float]]) -> None:
        self._target = target
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        return self._timed(PHASES[name], attribute) if name in PHASES else attribute

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
    from verl_omni.weight_sync import checks
    from verl_omni.workers.rollout.vllm_rollout.utils import vLLMOmniColocateWorkerExtension

    def bound_modules(self: Any) -> int:
        manager = self.lora_manager
        known = checks.lora_targets(manager._lora_modules, manager._packed_modules_mapping)
        return int(checks.check_binding(manager._registered_adapters[VLLM_LORA_INT_ID].loras, known))

    vLLMOmniColocateWorkerExtension.bound_modules = bound_modules


def train(model: Path, out: Path, scale: Scale) -> None:
    """Run the steps, and write what this process measured."""
    from stack import running

    calls: list[tuple[str, float, float]] = []
    with running(*overrides(model, scale)) as run, tempfile.TemporaryDirectory() as folder:
        import ray

        from verl_omni.trainer import main_diffusion
        from verl_omni.trainer.data import prompt_dataset
        from verl_omni.trainer.run.event_text import format_event
        from verl_omni.trainer.run.run_folder import RunFolder
        from verl_omni.trainer.run.step_checkpoints import RunRequests

        parts = {name: Timed(getattr(run.stack, name), calls) for name in ("workers", "agent_loop", "weights")}
        run_folder = RunFolder(Path(folder), lambda event: print(format_event(event), flush=True))
        run_folder.start(run.config, resumed_from=None)
        prompts, _ = prompt_dataset.load_checked(run.config)
        stack = dataclasses.replace(run.stack, **parts)
        requests = RunRequests(lambda: False)
        main_diffusion.build_loop(run.config, stack, run_folder, prompts, None, requests).fit(None)
        bound = None
        if scale is CPU:  # elsewhere, the worker has its own process
            (server,) = run.stack.servers.server_handles
            ray.get(server.__ray_call__.remote(add_worker_method))
            (bound,) = ray.get(server.collective_rpc.remote("bound_modules"))
        lines = [line for line in run_folder.metrics() if "actor/loss" in line]
        adapter = max(run_folder.path.glob("checkpoints/*/lora/*.safetensors"))
        out.write_text(json.dumps({"calls": calls, "bound": bound, "trained": _modules(adapter), "lines": lines}))


def _modules(adapter: Path) -> int:
    """Modules that an adapter's file has tensors of."""
    from safetensors import safe_open

    with safe_open(adapter, "pt") as opened:
        return len(opened.keys()) // 2


def estimated(model: Path, scale: Scale) -> dict[str, Any]:
    """What `drl fit` prints about the run as JSON."""
    device = [] if scale is GPU else ["--cpu"]
    settings = ["reward.scorer=brightness", *overrides(model, scale)]
    command = [sys.executable, "-m", "verl_omni.trainer.memory_estimate", *device, *settings]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    estimate: dict[str, Any] = json.loads(answer.stdout)
    return estimate


def measure(layers: int, cache: Path, scale: Scale) -> dict[str, Any]:
    """Make the model unless it is there, run the steps in processes of their own, and compare."""
    model = cache / f"sd3.5-medium-{layers}{'-complete' if scale.complete else ''}"
    this = [sys.executable, __file__, "--layers", str(layers), *(["--gpu"] if scale is GPU else [])]
    if not model.is_dir():
        subprocess.run([*this, "--make", str(model)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        began = time.monotonic()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **scale.environment}
        process = subprocess.Popen([*this, "--train", str(model), str(out)], env=environment)
        with PeakDeviceMemory() if scale is GPU else PeakMemory(process.pid) as peak:
            if process.wait() != 0:
                raise SystemExit("the run failed")
        seconds = time.monotonic() - began
        run = json.loads(out.read_text())
    expected = estimated(model, scale)
    rows = [
        {
            "phase": phase["name"],
            "estimated": phase["bytes"],
            "parts": phase["parts"],
            "measured": (measured := peak.between(spans := _spans(run["calls"], phase["name"]))),
            "ratio": phase["bytes"] / measured,
            "seconds": sum(end - start for start, end in spans),
        }
        for phase in expected["device" if scale is GPU else "host"]
    ]
    return {
        "layers": layers,
        "parameters": expected["parameters"],
        "trained_parameters": expected["trained_parameters"],
        "phases": rows,
        **peak.highest(),
        "seconds": seconds,
        "modules": run["trained"],
        "bound_modules": run["bound"],
        "metrics": run["lines"][-1],
        "lines": run["lines"],
    }


def _spans(calls: list[tuple[str, float, float]], phase: str) -> list[tuple[float, float]]:
    return [(start, end) for name, start, end in calls if name == phase]


def problems(run: Mapping[str, Any]) -> list[str]:
    """What is not as it should be."""
    texts = []
    if run["bound_modules"] not in (None, run["modules"]):
        texts.append(f"the adapter has {run['modules']} modules, and {run['bound_modules']} are bound")
    highest = max(row["estimated"] for row in run["phases"]) / max(row["measured"] for row in run["phases"])
    if not 0.85 < highest < 1.15:
        texts.append(f"the estimate is {highest:.2f} of the measured peak")
    if run["metrics"]["actor/optimizer_steps"] != 1:
        texts.append("no optimizer step was taken")
    return texts


def main() -> int:
    """Measure, write and print. Returns 1 if something is not as it should be."""
    parser = arguments(__doc__, "real_size", repeats=0)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA GPU, with complete text encoders")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omni-operator"
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the model, 4.6 GB; with --gpu 16 GB")
    parser.add_argument("--make", type=Path, help="only write the model, to this folder")
    parser.add_argument("--train", type=Path, nargs=2, help="only run the steps: model, and file for the results")
    chosen = parser.parse_args()
    scale = GPU if chosen.gpu else CPU
    if chosen.make:
        make_model(chosen.make, chosen.layers, complete=scale.complete)
        return 0
    if chosen.train:
        model, results = chosen.train
        train(model, results, scale)
        return 0
    run = measure(chosen.layers, chosen.cache, scale)
    write(results_file(parser, chosen), [run], **(dataclasses.asdict(scale) if chosen.gpu else {}))
    table(run["phases"], ["phase", "estimated", "measured", "ratio", "seconds"])
    print(f"{run['bound_modules']} of {run['modules']} modules bound; {run['metrics']}")
    for problem in (wrong := problems(run)):
        print(problem, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
