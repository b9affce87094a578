"""CPU memory of the sharded start on 1, 2 and 4 ranks of one node (gloo): one copy of the weights in all."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.workers.tiny_actor import model_settings
from verl_omni.workers.actor import parallel, shard_loading
from verl_omni.workers.actor.precision import Precision

pytestmark = pytest.mark.slow

RANKS = (1, 2, 4)
FAMILY = "StableDiffusion3Pipeline"
HEADS = 8
LAYERS = 6
STATUS = Path("/proc/self/status")


def own_bytes() -> int:
    """Memory of this process, without pages of mapped files: the kernel may drop these."""
    line = re.search(r"^RssAnon:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert line is not None
    return int(line[1]) * 1024


@contextmanager
def watched(peaks: list[int]) -> Iterator[None]:
    """Append the most that the process took above what it has now, looked at every millisecond."""
    before = own_bytes()
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.001):
            most = max(most, own_bytes() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        peaks.append(max(most, own_bytes() - before))


def find(rank: int, ranks: int, folder: Path, kind: str) -> list[int]:
    """The peaks of a load in slices and, to compare with, of a whole one."""
    mesh = parallel.make_mesh(kind, ranks, -1)
    peaks = list[int]()
    for way in ("warm-up", "files", "pickled"):
        with watched(peaks):
            shard_loading.load_sharded(
                model_settings(folder / ("pickled" if way == "pickled" else "files"), rank=0, checkpointing=True),
                mesh,
                precision=Precision(torch.float32, torch.float32),
                seed=3,
                reshard_after_forward=True,
            )
    return peaks[1:]


def write_model(folder: Path) -> int:
    """Stable Diffusion 3's transformer with 57 million random weights, in a safetensors file and in a pickle file.

    The files are in bfloat16, so that a whole load casts them: what it only maps is no memory of the process. Returns
    the bytes of the weights in float32.
    """
    from diffusers import SD3Transformer2DModel

    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=LAYERS,
        attention_head_dim=64,
        num_attention_heads=HEADS,
        caption_projection_dim=64 * HEADS,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        pos_embed_max_size=16,
    ).to(torch.bfloat16)
    for kind in ("files", "pickled"):
        (folder / kind).mkdir()
        (folder / kind / "model_index.json").write_text(json.dumps({"_class_name": FAMILY}))
        transformer.save_pretrained(folder / kind / "transformer", safe_serialization=kind == "files")
    return 4 * sum(parameter.numel() for parameter in transformer.parameters())


def test_the_host_memory_of_a_start_does_not_grow_with_the_ranks(tmp_path: Path, run_ranks: Any) -> None:
    weights = write_model(tmp_path)
    in_slices = {}
    copied = {}
    for ranks in RANKS:
        peaks_of_ranks = run_ranks(__file__, ranks, tmp_path)
        in_slices[ranks], copied[ranks] = (sum(peaks) / weights for peaks in zip(*peaks_of_ranks, strict=True))
    assert in_slices[1] > 0.9, "the weights themselves are in host memory, so they must be seen"
    assert max(in_slices.values()) < 1.3, in_slices
    assert copied[4] > 3, f"a whole copy for each rank must be seen: {copied}"
