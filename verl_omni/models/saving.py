"""Saving of generated models."""

from pathlib import Path
from typing import Any

import tqdm


def save(model: Any, path: Path) -> None:
    """Write a model or a pipeline in its library's layout.

    That shows a progress bar, whose monitor is a thread; a process with a second thread cannot fork Ray's workers
    (docs/adr/0007), as a program that makes a model and then trains it would. Bars have no monitor from here on.
    """
    tqdm.tqdm.monitor_interval = 0
    model.save_pretrained(path)
