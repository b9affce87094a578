"""What a checkpoint was trained with: two files in its folder, with the settings and digests of the files they name."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

SETTINGS = "config.yaml"
DATA = "data.json"
# Settings with files or folders whose content counts, wherever they are.
WITH_CONTENT = (
    "data.train_files",
    "data.val_files",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.lora_adapter_path",
    "reward.custom_reward_function.path",
    "reward.reward_model.model_path",
)
SCORERS = "reward.reward_functions"  # each may have a file, as `reward.custom_reward_function` has
DIGESTED = 64 << 20  # bytes of the beginning of a file; Parquet files with images can have many times as many
# places in a file of a folder, and bytes at each: models have many gigabytes
SAMPLES = 64
SAMPLE = 4096
MOST_FILES = 1000  # per folder


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """What a checkpoint was trained with.

    Attributes:
        content: digests of each setting's files or folders, by setting; None where one could not be read.
    """

    settings: DictConfig
    content: Mapping[str, Sequence[str | None]]

    def files(self) -> dict[str, str]:
        """The text of each file, by its name in the checkpoint's folder."""
        return {SETTINGS: OmegaConf.to_yaml(self.settings, resolve=True), DATA: json.dumps(self.content) + "\n"}


def of_run(config: DictConfig) -> CheckpointOrigin:
    """What the checkpoints of a run with these settings are trained with."""
    parts = OmegaConf.select(config, SCORERS) or {}
    names = (*WITH_CONTENT, *(f"{SCORERS}.{key}.path" for key in parts))
    named = {name: _paths(OmegaConf.select(config, name)) for name in names}
    return CheckpointOrigin(config, {name: [*map(_digest, paths)] for name, paths in named.items() if paths})


def read(checkpoint: Path) -> CheckpointOrigin | None:
    """The origin of a checkpoint; None if its folder does not have it."""
    try:
        settings = OmegaConf.load(checkpoint / SETTINGS)
        content = json.loads((checkpoint / DATA).read_text())
    except FileNotFoundError:
        return None
    return CheckpointOrigin(settings, content) if isinstance(settings, DictConfig) else None


def _paths(value: object) -> list[Path]:
    paths = value if isinstance(value, ListConfig) else [value] if value else []
    return [Path(str(path)) for path in paths]


def _digest(path: Path) -> str | None:
    """A digest of a file's size and first `DIGESTED` bytes, or of samples of all files of a folder."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        if path.is_dir():
            files = sorted(
                file
                for file in path.rglob("*")
                # No files in a folder such as `.cache`, in which `hf download` writes times.
                if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
            )
            if len(files) > MOST_FILES:
                return None
            for file in files:
                digest.update(f"{file.relative_to(path)}\n".encode())
                for block in _samples(file):
                    digest.update(block)
        else:
            for block in _beginning(path):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()


def _beginning(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield str(path.stat().st_size).encode()
        left = DIGESTED
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            yield block
            left -= len(block)


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE) * number // (SAMPLES - 1))
            yield file.read(SAMPLE)
