"""Files of a model folder: which a run cannot load, and a view of the folder in which weights have their plain names.

Engine and trainer read the plain names, such as `diffusion_pytorch_model.safetensors`. The engine reads every
safetensors file of a transformer without an index, so it would load a file and its fp16 variant one after the other.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_omni.utils.model_folder import INDEX

_NEEDED = re.compile(r"transformer|vae|scheduler|processor|(text_encoder|tokenizer)(_\d+)?")
_HAS_WEIGHTS = re.compile(r"transformer(_2)?|vae|text_encoder(_\d+)?")
_READ_BY_ENGINE = re.compile(r"transformer(_2)?")  # by its own loader, from safetensors files only
_FILE = re.compile(
    r"(?P<stem>diffusion_pytorch_model|model)(\.(?P<variant>[A-Za-z0-9_]+))?(?P<shard>-\d+-of-\d+)?\.safetensors"
)
_FILE_INDEX = re.compile(
    r"(?P<stem>diffusion_pytorch_model|model)\.safetensors\.index(\.(?P<variant>[A-Za-z0-9_]+))?\.json"
)
_POINTER = b"version https://git-lfs"  # beginning of the pointer that Git LFS leaves in place of a file
CONVERT = (
    "python3 -c \"from diffusers import DiffusionPipeline as P; P.from_pretrained('FOLDER').save_pretrained('NEW')\""
)


@dataclass(frozen=True, slots=True)
class Weights:
    """Safetensors files of a component with one variant.

    Attributes:
        variant: such as `fp16`; None: the plain names.
        whole: the name of the index, or of the only file; None: only shards without an index are there.
        files: names of the files with tensors that are wanted.
    """

    variant: str | None
    whole: str | None
    files: tuple[str, ...]


def find_problems(folder: Path, *, extended: bool = False) -> Iterator[str]:
    """Messages about what prevents engine or trainer from loading a model: component, file, what to do.

    Args:
        folder: has `model_index.json`.
        extended: whether a module of the user's may have registered the model's family, which may need no text encoder.
    """
    try:
        entries = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except ValueError as error:
        yield f"{folder / INDEX} is not valid JSON: {error}; download it again"
        return
    for component, entry in entries.items():
        if not isinstance(entry, list):
            continue
        needed = _NEEDED.fullmatch(component) is not None
        if entry[:1] == [None]:
            if needed and not extended:
                yield (
                    f"{folder / INDEX}: {component} is null, and the rollout engine needs it: download the model "
                    f"again, with {component}"
                )
        elif needed and not (folder / component).is_dir():
            yield f"{folder / component} does not exist; {_again(component)}"
        elif _HAS_WEIGHTS.fullmatch(component):
            yield from _problems_of_weights(folder, component)


def plain_folder(folder: Path, cache: Path | None = None) -> Path:
    """The model's folder; if a component has only a variant's weights, a folder of links with plain file names.

    Args:
        folder: one without problems. cache: where the folder of links is created; None: in the Hugging Face cache.
    """
    chosen = {
        path.name: weights
        for path in sorted(folder.iterdir())
        if _HAS_WEIGHTS.fullmatch(path.name) and path.is_dir()
        for weights in [_choose(path)]
        if weights is not None and (weights.variant is not None or len(_variants(path)) > 1)
    }
    if not chosen:
        return folder
    if cache is None:
        from huggingface_hub import constants

        cache = Path(str(constants.HF_HOME)) / "omni-operator"
    folder = folder.resolve()
    digest = hashlib.sha256(repr((str(folder), sorted(chosen.items(), key=str))).encode()).hexdigest()[:16]
    view = cache / f"{folder.name}-{digest}"
    if not view.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as aside:
            _link(folder, Path(aside) / "view", chosen)
            try:
                (Path(aside) / "view").rename(view)
            except OSError:
                if not view.is_dir():  # another process was faster
                    raise
    return view


def _link(folder: Path, view: Path, chosen: dict[str, Weights]) -> None:
    view.mkdir()
    for path in folder.iterdir():
        if path.name not in chosen:
            (view / path.name).symlink_to(path)
            continue
        weights = chosen[path.name]
        (view / path.name).mkdir()
        for file in path.iterdir():
            if not _FILE.fullmatch(file.name) and not _FILE_INDEX.fullmatch(file.name):
                (view / path.name / file.name).symlink_to(file)
        for name in weights.files:
            (view / path.name / name).symlink_to(path / name)
        if weights.whole is not None and weights.variant is not None:
            plain = weights.whole.replace(f".{weights.variant}.", ".")
            (view / path.name / weights.whole).unlink(missing_ok=True)
            (view / path.name / plain).symlink_to(path / weights.whole)
        elif weights.whole not in (None, *weights.files):
            (view / path.name / str(weights.whole)).symlink_to(path / str(weights.whole))


def _problems_of_weights(folder: Path, component: str) -> Iterator[str]:
    path = folder / component
    weights = _choose(path)
    if weights is None:
        yield from _no_safetensors(folder, component)
        return
    if weights.whole is None:
        yield f"{path} has parts of its weights, and not their index; {_again(component)}"
    for name in weights.files:
        file = path / name
        if not file.is_file():
            yield f"{file} does not exist, and the index names it; {_again(component)}"
        elif problem := _file_problem(file):
            yield f"{file} {problem}"


def _no_safetensors(folder: Path, component: str) -> Iterator[str]:
    path = folder / component
    variants = sorted({str(variant) for variant in _variants(path)})
    if variants:
        yield f"{path} has weights of the variants {' and '.join(variants)}: delete all but one"
    elif not any(path.glob("*.bin")):
        yield f"{path} has no weights; {_again(component)}"
    elif _READ_BY_ENGINE.fullmatch(component):
        command = CONVERT.replace("FOLDER", str(folder))
        yield f"{path} has weights as *.bin, and the rollout engine reads safetensors: {command}"


def _variants(path: Path) -> dict[str | None, Weights]:
    """The weights of a component, by variant."""
    names = sorted(os.listdir(path))
    by_variant: dict[str | None, Weights] = {}
    for name in names:
        if match := _FILE.fullmatch(name):
            variant = match["variant"]
            earlier = by_variant.get(variant, Weights(variant, None, ()))
            file = earlier.whole if match["shard"] else name
            by_variant[variant] = Weights(variant, file, (*earlier.files, name))
    for name in names:
        if match := _FILE_INDEX.fullmatch(name):
            by_variant[match["variant"]] = Weights(match["variant"], name, _listed(path / name))
    return by_variant


def _listed(index: Path) -> tuple[str, ...]:
    """Names of the files that an index has tensors in."""
    try:
        listed: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{index} is no index of weights, or only a part of one: download it again") from error
    return tuple(sorted(set(listed.values())))


def _choose(path: Path) -> Weights | None:
    """The plain weights, else the weights of the only variant."""
    variants = _variants(path)
    if None in variants or len(variants) == 1:
        return variants.get(None) or next(iter(variants.values()))
    return None


def pointer_problem(file: Path) -> str | None:
    """What to do where Git LFS has left a pointer in place of a file; None where it is the file."""
    with file.open("rb") as content:
        is_pointer = content.read(len(_POINTER)) == _POINTER
    return "is a pointer of Git LFS and not the file: run `git lfs pull`" if is_pointer else None


def _file_problem(file: Path) -> str | None:
    """Why a safetensors file cannot be read; only its header is."""
    if problem := pointer_problem(file):
        return problem
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        try:
            header = json.loads(content.read(min(length, size)))
        except ValueError:
            return "is no safetensors file, or only a part of one: download it again"
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    wanted = 8 + length + max(ends, default=0)
    return None if size == wanted else f"has {size:,} bytes of {wanted:,}: download it again"


def _again(component: str) -> str:
    return f"complete the download: hf download OWNER/NAME --include '{component}/*' --local-dir FOLDER"
