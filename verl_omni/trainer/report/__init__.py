"""Run folder -> report."""

from pathlib import Path


def write(p: Path) -> None: ...
