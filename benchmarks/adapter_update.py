"""Adapter update: through memory compared with files, and one swap compared with one swap per bucket.

    python benchmarks/adapter_update.py [--repeats N] [--out FILE]

On the real engine, with a Stable Diffusion 3 of 12 blocks and 768 features (random weights), and an adapter for all
attention layers. Both variants start with the adapter's tensors in the trainer process, and end when the engine has
confirmed that it uses them for the next request:

- through memory: an update as in training, with digests, checks of every name, shape and value, the swap, and every
  matrix read back from the engine's layers;
- through files: the tensors and peft's settings are saved, and one call of the worker drops the old adapter, loads the
  folder and attaches it, without checks. On tmpfs, on a disk (the file stays in the page cache), and on a disk with
  `fsync`, which another host would need.

The lower bound of all variants is the swap alone: vLLM-Omni drops the old adapter, and adds and attaches one whose
tensors are already in the engine's process.

The reference adds an adapter per bucket; an update per part of the tensors reproduces that. The variants take turns;
the first turn is not counted.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import arguments, spread, table, write
from stack import running

FILES = ("tmpfs", "disk", "forced")
RANKS = (4, 8, 16, 32, 64)
PARTS = (1, 4, 16)
PARTS_RANK = 16
BLOCKS = 12
HEADS = 12
HEAD = 64
WIDTH = HEADS * HEAD
LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
BUCKET = 512 << 20
DEADLINE = 60.0  # seconds
# peft's names
TENSORS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
Adapter = dict[str, Any]


def make_model(path: Path) -> None:
    """Write the tiny model with a larger transformer."""
    from diffusers import SD3Transformer2DModel

    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    make_tiny_sd3(path)
    small = SD3Transformer2DModel.load_config(path / "transformer")
    sizes = {
        "num_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "attention_head_dim": HEAD,
        "caption_projection_dim": WIDTH,
    }
    SD3Transformer2DModel.from_config({**small, **sizes}).save_pretrained(path / "transformer")


def adapter(rank: int) -> Adapter:
    """Tensors of an adapter, with the engine's names."""
    import torch

    tensors = {}
    for block, layer in itertools.product(range(BLOCKS), LAYERS):
        if block == BLOCKS - 1 and layer == "to_add_out":  # the last block has none
            continue
        module = f"transformer.transformer_blocks.{block}.attn.{layer}"
        tensors[f"{module}.lora_A.weight"] = torch.randn(rank, WIDTH) / WIDTH**0.5
        tensors[f"{module}.lora_B.weight"] = torch.randn(WIDTH, rank) / rank**0.5
    return tensors


def split(tensors: Adapter, number: int) -> list[Adapter]:
    """The tensors in `number` parts, each with both matrices of its modules."""
    items = iter(tensors.items())
    pairs = list(zip(items, items, strict=True))
    size = -(-len(pairs) // number)
    return [dict(itertools.chain(*pairs[start : start + size])) for start in range(0, len(pairs), size)]


def peft_settings(rank: int) -> dict[str, Any]:
    """Settings that peft saves with the tensors."""
    return {"r": rank, "lora_alpha": rank, "target_modules": list(LAYERS), "peft_type": "LORA", "bias": "none"}


def add_worker_methods(_server: Any) -> None:
    """Add methods for the comparisons to the worker; runs in the server process, which is also the worker's."""
    from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME, OmniTensorLoRARequest
    from verl_omni.workers.rollout.vllm_rollout.utils import vLLMOmniColocateWorkerExtension

    def take_request(self: Any, request: Any) -> None:
        self.remove_lora(request.lora_int_id)
        if not self.add_lora(request):
            raise RuntimeError("the engine refused the adapter")
        self.lora_manager.set_active_adapter(request)

    def swap_alone(self: Any, folder: str) -> float:
        from safetensors.torch import load_file

        settings = json.loads((Path(folder) / SETTINGS).read_text())
        request = OmniTensorLoRARequest(
            VLLM_LORA_NAME,
            VLLM_LORA_INT_ID,
            folder,
            peft_config=settings,
            lora_tensors=load_file(Path(folder) / TENSORS),
        )
        began = time.perf_counter()
        take_request(self, request)
        return time.perf_counter() - began

    vLLMOmniColocateWorkerExtension.take_request = take_request
    vLLMOmniColocateWorkerExtension.swap_alone = swap_alone


class Trainer:
    """The trainer's side of all variants; each method returns the seconds it took."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.versions = itertools.count(1)

    def in_memory(self, tensors: Adapter, rank: int) -> float:
        """Update the adapter as training does."""
        import ray

        from verl_omni.weight_sync import ipc, names

        began = time.perf_counter()
        version = next(self.versions)
        update = f"{names.make_update_zmq_id(version, version)}-{os.getpid()}"
        answer = self.server.collective_rpc.remote(
            "update_weights_from_ipc",
            kwargs={
                "peft_config": peft_settings(rank),
                "base_sync_done": True,
                "use_shm": True,
                "zmq_update_id": update,
                "deadline": DEADLINE,
                "global_steps": version,
            },
        )
        job = ray.get_runtime_context().get_job_id()
        handle = names.make_update_zmq_handle(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-0-rank-0.sock", update)
        ipc.send(tensors.items(), handle=handle, bucket_bytes=BUCKET, device=None, deadline=DEADLINE)
        if (taken := ray.get(answer)[0])["bound"] * 2 != len(tensors):
            raise RuntimeError(f"the engine bound {taken} of {len(tensors)} tensors")
        ray.get(self.server.set_global_steps.remote(version))
        return time.perf_counter() - began

    def through_files(self, tensors: Adapter, rank: int, folder: Path, *, forced: bool = False) -> float:
        """Save the adapter, and let the engine load it."""
        import ray
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME

        began = time.perf_counter()
        save_file(tensors, folder / TENSORS)
        (folder / SETTINGS).write_text(json.dumps(peft_settings(rank)))
        if forced:
            for file in folder.iterdir():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        request = LoRARequest(VLLM_LORA_NAME, VLLM_LORA_INT_ID, str(folder))
        ray.get(self.server.collective_rpc.remote("take_request", args=(request,)))
        ray.get(self.server.set_global_steps.remote(next(self.versions)))
        return time.perf_counter() - began

    def swap_alone(self, folder: Path) -> float:
        """Swap alone, with the adapter that was last saved in the folder."""
        import ray

        return ray.get(self.server.collective_rpc.remote("swap_alone", args=(str(folder),)))[0]

    def picture(self) -> Any:
        """An image from the same noise each time."""
        import ray

        params = {
            "height": 64,
            "width": 64,
            "num_inference_steps": 4,
            "guidance_scale": 1.0,
            "seed": 5,
            "max_sequence_length": 16,
            "logprobs": False,
        }
        reply = self.server.generate.remote(
            prompt_ids=[2, 5, 7], sampling_params=params, request_id=f"draw-{next(self.versions)}"
        )
        return ray.get(reply).diffusion_output


def against_files(trainer: Trainer, disk: Path, tmpfs: Path, repeats: int) -> list[dict[str, Any]]:
    """A row per rank."""
    rows = []
    for rank in RANKS:
        tensors = adapter(rank)
        took: dict[str, list[float]] = {way: [] for way in ("memory", *FILES, "swap")}
        for _ in range(repeats + 1):
            took["memory"].append(trainer.in_memory(tensors, rank))
            took["tmpfs"].append(trainer.through_files(tensors, rank, tmpfs))
            took["swap"].append(trainer.swap_alone(tmpfs))
            took["disk"].append(trainer.through_files(tensors, rank, disk))
            took["forced"].append(trainer.through_files(tensors, rank, disk, forced=True))
        counted = {way: seconds[1:] for way, seconds in took.items()}
        row = {"rank": rank, "megabytes": sum(tensor.nbytes for tensor in tensors.values()) / 1e6}
        row |= spread("memory_s", counted["memory"]) | spread("swap_s", counted["swap"])
        bound = [files / swap for files, swap in zip(counted["tmpfs"], counted["swap"], strict=True)]
        row |= spread("tmpfs_over_swap", bound)
        for way in FILES:
            ratios = [files / memory for files, memory in zip(counted[way], counted["memory"], strict=True)]
            row |= spread(f"{way}_s", counted[way]) | spread(f"{way}_ratio", ratios)
        rows.append(row)
    return rows


def by_parts(trainer: Trainer, repeats: int) -> list[dict[str, Any]]:
    """A row per number of parts: time relative to one update, and whether the image is the same."""
    import torch

    tensors = adapter(PARTS_RANK)
    trainer.in_memory(tensors, PARTS_RANK)
    expected = trainer.picture()
    rows = []
    for number in PARTS:
        pieces = split(tensors, number)
        ratios = []
        for _ in range(repeats + 1):
            once = trainer.in_memory(tensors, PARTS_RANK)
            ratios.append(sum(trainer.in_memory(part, PARTS_RANK) for part in pieces) / once)
        same = bool(torch.equal(trainer.picture(), expected))
        rows.append({"buckets": number, **spread("ratio", ratios[1:]), "same_picture": same})
    return rows


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "adapter_update", repeats=7).parse_args()
    with (
        tempfile.TemporaryDirectory() as disk,
        tempfile.TemporaryDirectory(dir="/dev/shm") as tmpfs,
        tempfile.TemporaryDirectory() as model,
    ):
        make_model(Path(model) / "sd3")
        overrides = [f"actor_rollout_ref.model.path='{model}/sd3'", f"actor_rollout_ref.model.lora_rank={max(RANKS)}"]
        with running(*overrides) as run:
            import ray

            (server,) = run.stack.servers.server_handles
            ray.get(server.__ray_call__.remote(add_worker_methods))
            trainer = Trainer(server)
            rows = against_files(trainer, Path(disk), Path(tmpfs), chosen.repeats)
            buckets = by_parts(trainer, chosen.repeats)
    write(chosen.out, rows, buckets=buckets, modules=BLOCKS * len(LAYERS) - 1, buckets_rank=PARTS_RANK)
    table(rows, ["rank", "megabytes", "memory_s", "tmpfs_ratio", "disk_ratio", "forced_ratio", "tmpfs_over_swap"])
    table(buckets, ["buckets", "ratio", "same_picture"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
