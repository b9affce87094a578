"""A new adapter into the engine: in memory against through files, and one swap against a swap for each bucket.

    python benchmarks/adapter_update.py [--repeats N] [--out FILE]

On the real engine, with a Stable Diffusion 3 of 12 blocks and 768 features (random weights), and an adapter of all its
attention. Both ways begin with the adapter's tensors in the trainer's process, and end when the engine has answered
that the next request is drawn with them:

- in memory: an update as training does it, with digests, checks of every name, shape and value, the swap, and every
  matrix read back from the engine's layers;
- files: the tensors saved with peft's settings beside them, and one call of the worker, which drops the old adapter,
  loads the folder and attaches it. Nothing is checked. On a tmpfs, on a disk (where the file stays in the system's
  memory, too), and on a disk with `fsync`, as another host would need it.

What no way can go below is measured beside them: the old adapter dropped, and one whose tensors are in the engine's
process already added and attached, by vLLM-Omni's own calls alone.

The reference adds an adapter for each bucket that arrives; that is played by an update for each part of the tensors.
The ways take turns, after one of each that is not counted.
"""

from __future__ import annotations

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
BLOCKS, HEADS, HEAD = 12, 12, 64
WIDTH = HEADS * HEAD
LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
BUCKET = 512 << 20
DEADLINE = 60.0  # seconds
TENSORS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"  # peft's names
Adapter = dict[str, Any]


def make_model(path: Path) -> None:
    """The tiny model with a larger transformer."""
    from diffusers import SD3Transformer2DModel

    from verl_omni.models.tiny import make_tiny_sd3

    make_tiny_sd3(path)
    small = SD3Transformer2DModel.load_config(path / "transformer")
    sizes = {
        "num_layers": BLOCKS, "num_attention_heads": HEADS, "attention_head_dim": HEAD, "caption_projection_dim": WIDTH,
    }  # fmt: skip
    SD3Transformer2DModel.from_config({**small, **sizes}).save_pretrained(path / "transformer")


def adapter(rank: int) -> Adapter:
    """Tensors of an adapter, under the engine's names."""
    import torch

    made = {}
    for block, layer in itertools.product(range(BLOCKS), LAYERS):
        if block == BLOCKS - 1 and layer == "to_add_out":  # the last block has none
            continue
        module = f"transformer.transformer_blocks.{block}.attn.{layer}"
        made[f"{module}.lora_A.weight"] = torch.randn(rank, WIDTH) / WIDTH**0.5
        made[f"{module}.lora_B.weight"] = torch.randn(WIDTH, rank) / rank**0.5
    return made


def parts(tensors: Adapter, number: int) -> list[Adapter]:
    """The same in so many parts, each with both matrices of its modules."""
    items = iter(tensors.items())
    pairs = list(zip(items, items, strict=True))
    size = -(-len(pairs) // number)
    return [dict(itertools.chain(*pairs[start : start + size])) for start in range(0, len(pairs), size)]


def peft_settings(rank: int) -> dict[str, Any]:
    """What peft would write beside the tensors."""
    return {"r": rank, "lora_alpha": rank, "target_modules": list(LAYERS), "peft_type": "LORA", "bias": "none"}


def learn_the_yardsticks(_server: Any) -> None:
    """Runs in the server's process, which is its worker's too: gives the worker methods for the yardsticks."""
    from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME, OmniTensorLoRARequest
    from verl_omni.workers.rollout.vllm_rollout.utils import vLLMOmniColocateWorkerExtension

    def take_request(self: Any, request: Any) -> None:
        self.remove_lora(request.lora_int_id)
        if not self.add_lora(request):
            raise RuntimeError("the engine did not take the adapter")
        self.lora_manager.set_active_adapter(request)

    def swap_alone(self: Any, folder: str) -> float:
        from safetensors.torch import load_file

        settings = json.loads((Path(folder) / SETTINGS).read_text())
        request = OmniTensorLoRARequest(
            VLLM_LORA_NAME, VLLM_LORA_INT_ID, folder,
            peft_config=settings, lora_tensors=load_file(Path(folder) / TENSORS),
        )  # fmt: skip
        began = time.perf_counter()
        take_request(self, request)
        return time.perf_counter() - began

    vLLMOmniColocateWorkerExtension.take_request = take_request
    vLLMOmniColocateWorkerExtension.swap_alone = swap_alone


class Trainer:
    """The trainer's end of both ways."""

    def __init__(self, server: Any) -> None:
        self.server, self.versions = server, itertools.count(1)

    def in_memory(self, tensors: Adapter, rank: int) -> float:
        """An update; its seconds."""
        import ray

        from verl_omni.weight_sync import names, transfer

        began = time.perf_counter()
        version = next(self.versions)
        update = f"{names.make_update_zmq_id(version, version)}-{os.getpid()}"
        answer = self.server.collective_rpc.remote(
            "update_weights_from_ipc",
            kwargs={
                "peft_config": peft_settings(rank), "base_sync_done": True, "use_shm": True, "zmq_update_id": update,
                "deadline": DEADLINE, "global_steps": version,
            },
        )  # fmt: skip
        job = ray.get_runtime_context().get_job_id()
        handle = names.make_update_zmq_handle(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-0-rank-0.sock", update)
        transfer.send(tensors.items(), handle=handle, bucket_bytes=BUCKET, device=None, deadline=DEADLINE)
        if (taken := ray.get(answer)[0])["bound"] * 2 != len(tensors):
            raise RuntimeError(f"the engine took {taken} of {len(tensors)} tensors")
        ray.get(self.server.set_global_steps.remote(version))
        return time.perf_counter() - began

    def through_files(self, tensors: Adapter, rank: int, folder: Path, *, forced: bool = False) -> float:
        """Save, and have it loaded; the seconds of both."""
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
        """Seconds of vLLM-Omni's part, with the adapter that was saved there last."""
        import ray

        return ray.get(self.server.collective_rpc.remote("swap_alone", args=(str(folder),)))[0]

    def picture(self) -> Any:
        """A sample of the same noise every time."""
        import ray

        params = {"height": 64, "width": 64, "num_inference_steps": 4, "guidance_scale": 1.0, "seed": 5,
                  "max_sequence_length": 16, "logprobs": False}  # fmt: skip
        drawn = self.server.generate.remote(
            prompt_ids=[2, 5, 7], sampling_params=params, request_id=f"draw-{next(self.versions)}"
        )
        return ray.get(drawn).diffusion_output


def against_files(trainer: Trainer, disk: Path, tmpfs: Path, repeats: int) -> list[dict[str, Any]]:
    """A row for each rank."""
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
        counted = {way: each[1:] for way, each in took.items()}
        row = {"rank": rank, "megabytes": sum(tensor.nbytes for tensor in tensors.values()) / 1e6}
        row |= spread("memory_s", counted["memory"]) | spread("swap_s", counted["swap"])
        bound = [files / swap for files, swap in zip(counted["tmpfs"], counted["swap"], strict=True)]
        row |= spread("tmpfs_over_swap", bound)
        for way in FILES:
            ratios = [files / memory for files, memory in zip(counted[way], counted["memory"], strict=True)]
            row |= spread(f"{way}_s", counted[way]) | spread(f"{way}_ratio", ratios)
        rows.append(row)
    return rows


def for_each_part(trainer: Trainer, repeats: int) -> list[dict[str, Any]]:
    """A row for each number of parts: seconds over those of one update, and whether the same picture is drawn."""
    import torch

    whole = adapter(PARTS_RANK)
    trainer.in_memory(whole, PARTS_RANK)
    expected = trainer.picture()
    rows = []
    for number in PARTS:
        cut, ratios = parts(whole, number), []
        for _ in range(repeats + 1):
            once = trainer.in_memory(whole, PARTS_RANK)
            ratios.append(sum(trainer.in_memory(part, PARTS_RANK) for part in cut) / once)
        same = bool(torch.equal(trainer.picture(), expected))
        rows.append({"buckets": number, **spread("ratio", ratios[1:]), "same_picture": same})
    return rows


def main() -> int:
    """Measure and print."""
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
            ray.get(server.__ray_call__.remote(learn_the_yardsticks))
            trainer = Trainer(server)
            rows = against_files(trainer, Path(disk), Path(tmpfs), chosen.repeats)
            buckets = for_each_part(trainer, chosen.repeats)
    write(chosen.out, rows, buckets=buckets, modules=BLOCKS * len(LAYERS) - 1, buckets_rank=PARTS_RANK)
    table(rows, ["rank", "megabytes", "memory_s", "tmpfs_ratio", "disk_ratio", "forced_ratio", "tmpfs_over_swap"])
    table(buckets, ["buckets", "ratio", "same_picture"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
