"""The sharded start on 1, 2 and 4 ranks (gloo): the weights and the update of a whole load, each byte read once.

The model is also written as pickle files, which every rank loads whole: the start to compare with. The ranks are forked
from a process that has imported everything, and each runs this file.
"""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ml.workers.tiny_actor import LargestTensor, model_settings
from verl_omni.models.tiny import MAKERS
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
from verl_omni.workers.actor import parallel, shard_loading, tensor_files
from verl_omni.workers.actor.precision import Precision
from verl_omni.workers.actor.tensor_files import FILE, TensorFiles

pytestmark = pytest.mark.slow

RANKS = (1, 2, 3, 4)  # 3 do not divide the tensors
HALF = {"compute": torch.bfloat16, "frozen": torch.bfloat16}
# Name -> (family, rank of the adapter or 0 for all weights, dtypes, ranks that share one copy of the weights).
CASES: dict[str, tuple[str, int, dict[str, torch.dtype], int]] = {
    "sd3 adapter": ("sd3", 4, HALF, -1),
    "sd3 all weights": ("sd3", 0, {}, -1),
    "sd3 all weights in copies": ("sd3", 0, {}, 1),
    "sd3 buffers in bfloat16": ("sd3", 4, {**HALF, "buffers": torch.bfloat16}, -1),
    "qwen_image adapter": ("qwen_image", 4, HALF, -1),
    "wan adapter": ("wan", 4, HALF, -1),  # with frozen parts in float32
    "wan all weights": ("wan", 0, {"compute": torch.bfloat16}, -1),  # with trained parts in float32
}


def settings(folder: Path, rank: int) -> Any:
    architecture = json.loads((folder / "model_index.json").read_text())["_class_name"]
    return model_settings(folder, rank=rank, architecture=architecture, checkpointing=True)


def state(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Everything that must not depend on how a model was loaded, by name of the tensor."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: (type(tensor), tensor.device, tensor.dtype, tensor.requires_grad, local(tensor))
        for name, tensor in tensors.items()
    }


def local(tensor: Tensor) -> Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def differences(one: nn.Module, other: nn.Module) -> list[str]:
    first = state(one)
    second = state(other)
    return sorted(first.keys() ^ second.keys()) + [
        name
        for name in first.keys() & second.keys()
        if first[name][:-1] != second[name][:-1] or not torch.equal(first[name][-1], second[name][-1])
    ]


class Opened:
    """Opens files for `load_sharded`; `bytes_read` of those that it opened last, 0 if it opened none."""

    def __init__(self) -> None:
        self.files: TensorFiles | None = None

    def __call__(self, folder: Path) -> TensorFiles:
        self.files = TensorFiles(folder)
        return self.files

    @property
    def bytes_read(self) -> int:
        return 0 if self.files is None else self.files.bytes_read


def find(rank: int, ranks: int, folder: Path, kind: str) -> dict[str, Any]:
    """What the two ways to load the model of each case differ in, on this number of ranks."""
    loaded: dict[str, Any] = {}
    for name, (family, adapter, dtypes, size) in CASES.items():
        mesh = parallel.make_mesh(kind, ranks, size)
        precision = Precision(**{"frozen": torch.float32, "compute": torch.float32, **dtypes})
        modules = {}
        states = {}
        opened = {}
        for way in ("files", "pickled"):
            torch.manual_seed(1)
            opened[way] = Opened()
            modules[way] = shard_loading.load_sharded(
                settings(folder / way / family, adapter),
                mesh,
                precision=precision,
                seed=3,
                reshard_after_forward=True,
                open_files=opened[way],
            )
            states[way] = torch.get_rng_state()
        assert opened["pickled"].bytes_read == 0, "not loaded whole, so there is nothing to compare with"
        loaded[name] = {
            "bytes": opened["files"].bytes_read,
            "differences": differences(modules["files"], modules["pickled"]),
            "same generator": torch.equal(states["files"], states["pickled"]),
        }
    return loaded


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny models below `files`, SD3 in several files, and with pickled transformers below `pickled`."""
    from diffusers import AutoModel

    root = tmp_path_factory.mktemp("models")
    for family in {family for family, *_ in CASES.values()}:
        MAKERS[family](root / "files" / family)
        transformer = AutoModel.from_pretrained(str(root / "files" / family), subfolder="transformer")
        shutil.copytree(root / "files" / family, root / "pickled" / family)
        (root / "pickled" / family / "transformer" / FILE).unlink()
        transformer.save_pretrained(root / "pickled" / family / "transformer", safe_serialization=False)
        if family == "sd3":
            (root / "files" / family / "transformer" / FILE).unlink()
            transformer.save_pretrained(root / "files" / family / "transformer", max_shard_size="100KB")
    assert len(list((root / "files" / "sd3" / "transformer").glob("*.safetensors"))) > 1
    return root


@pytest.fixture(scope="module")
def found(folders: Path, run_ranks: Any) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by the number of ranks."""
    return {ranks: run_ranks(__file__, ranks, folders) for ranks in RANKS}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", RANKS)
def test_the_model_is_that_of_a_whole_load(found: dict[int, list[dict[str, Any]]], ranks: int, name: str) -> None:
    """Every shard and buffer, bit for bit: value, dtype, device, whether it is trained; and torch's generator."""
    for rank in found[ranks]:
        assert rank[name]["differences"] == [] and rank[name]["same generator"]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("name", "copies"), [("sd3 all weights", 1), ("sd3 all weights in copies", 0)])
def test_a_rank_reads_its_share_of_the_bytes(
    found: dict[int, list[dict[str, Any]]], folders: Path, ranks: int, name: str, copies: int
) -> None:
    """The ranks of one copy of the weights read each byte of the parameters once; buffers all of them."""
    files = (folders / "files" / "sd3" / "transformer").glob("*.safetensors")
    sizes = {name: tensor.nbytes for file in files for name, tensor in load_file(file).items()}
    buffers = sizes.pop("pos_embed.pos_embed")
    parameters = sum(sizes.values())
    read = [rank[name]["bytes"] - buffers for rank in found[ranks]]
    if copies == 1:
        assert sum(read) == parameters
        assert max(read) < 1.1 * parameters / ranks
    else:
        assert read == [parameters] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_frozen_parts_in_float32_are_read_by_every_rank(
    found: dict[int, list[dict[str, Any]]], folders: Path, ranks: int
) -> None:
    tensors = load_file(folders / "files" / "wan" / "transformer" / FILE)
    kept = {"time_embedder", "scale_shift_table", "norm1", "norm2", "norm3"}  # of `_keep_in_fp32_modules`
    unsharded = sum(tensor.nbytes for name, tensor in tensors.items() if kept & set(name.split(".")))
    others = sum(tensor.nbytes for tensor in tensors.values()) - unsharded
    assert unsharded > 0
    assert sum(rank["wan adapter"]["bytes"] - unsharded for rank in found[ranks]) == others


def test_position_embeddings_that_the_files_have_are_not_computed_and_others_are(folders: Path) -> None:
    """SD3.5 medium's position embeddings would take 3.4 GiB of CPU memory on each rank."""
    with LargestTensor() as computed:
        module = shard_loading.without_memory(folders / "files" / "sd3" / "transformer", torch.float32)
    assert computed.bytes < module.pos_embed.pos_embed.nbytes / 2  # type: ignore[operator, union-attr]
    qwen = shard_loading.without_memory(folders / "files" / "qwen_image" / "transformer", torch.float32)
    wan = shard_loading.without_memory(folders / "files" / "wan" / "transformer", torch.float32)
    assert not qwen.pos_embed.pos_freqs.is_meta and not wan.rope.freqs_cos.is_meta  # type: ignore[union-attr]


def load(folder: Path) -> nn.Module:
    return shard_loading.load_sharded(
        settings(folder, 4),
        parallel.mesh_of_one(torch.device("cpu")),
        precision=Precision(torch.float32, torch.float32),
        seed=3,
        reshard_after_forward=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny_sd3(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[Any], object]) -> None:
    file = folder / "transformer" / FILE
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("transformer_blocks.1.attn.to_q.weight"), r"attn\.to_q\.weight is missing"),
        (lambda tensors: tensors.update({"proj_out.bias": torch.zeros(3)}), r"proj_out\.bias has shape \[3\] instead"),
        (lambda tensors: tensors.pop("pos_embed.pos_embed"), r"pos_embed\.pos_embed is missing"),
    ],
    ids=["no tensor", "another shape", "no buffer"],
)
def test_a_tensor_that_does_not_fit_is_named(folder: Path, change: Callable[[Any], object], words: str) -> None:
    rewrite(folder, change)
    with pytest.raises(ValueError, match=words):
        load(folder)


def test_a_missing_file_of_several_is_named(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "files" / "sd3", tmp_path / "model")
    gone = min((tmp_path / "model" / "transformer").glob("*.safetensors"))
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        load(tmp_path / "model")


def test_unused_tensors_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, tensor_files.__name__)
    rewrite(folder, lambda tensors: tensors.update({"spare.weight": torch.zeros(3)}))
    load(folder)
    assert "1 tensors that the model does not use: ['spare.weight']" in caplog.text
