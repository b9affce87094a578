"""The command line of an engine that a test starts without a server."""

from __future__ import annotations

import argparse
from pathlib import Path


def command_line(model: Path, batch: int, extension: str | None = None) -> argparse.Namespace:
    """What a server takes of verl's command line."""
    return argparse.Namespace(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        max_num_seqs=batch,
        worker_extension_cls=extension,
        trust_remote_code=False,
        tensor_parallel_size=1,
        data_parallel_size=1,
        enable_sleep_mode=False,
    )
