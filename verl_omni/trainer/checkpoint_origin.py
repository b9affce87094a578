"""What a checkpoint was trained with: two files in its folder, the settings and digests of the training files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

SETTINGS, DATA = "config.yaml", "data.json"
DIGESTED = 64 << 20  # bytes of the beginning of a file; Parquet files with images can have many times as many


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """What a checkpoint was trained with.

    Attributes:
        data: a digest of each training file; None where it could not be read. Empty: not known.
    """

    settings: DictConfig
    data: Sequence[str | None]

    def files(self) -> dict[str, str]:
        """The text of each file, by its name in the checkpoint's folder."""
        return {SETTINGS: OmegaConf.to_yaml(self.settings, resolve=True), DATA: json.dumps(list(self.data)) + "\n"}


def of_run(config: DictConfig) -> CheckpointOrigin:
    """What the checkpoints of a run with these settings are trained with."""
    files = config.data.train_files
    return CheckpointOrigin(config, [_digest(Path(path)) for path in ([files] if isinstance(files, str) else files)])


def read(checkpoint: Path) -> CheckpointOrigin | None:
    """The origin of a checkpoint; None if its folder does not have it, as those of earlier versions."""
    try:
        settings, data = OmegaConf.load(checkpoint / SETTINGS), json.loads((checkpoint / DATA).read_text())
    except FileNotFoundError:
        return None
    return CheckpointOrigin(settings, data) if isinstance(settings, DictConfig) else None


def _digest(path: Path) -> str | None:
    """A digest of a file's size and first `DIGESTED` bytes."""
    try:
        with path.open("rb") as file:
            found = hashlib.blake2b(str(path.stat().st_size).encode(), digest_size=16)
            left = DIGESTED
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                found.update(block)
                left -= len(block)
    except OSError:
        return None
    return found.hexdigest()
