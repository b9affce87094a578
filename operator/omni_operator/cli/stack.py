"""Programs of the training stack, which this package never imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import console, machine


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Turn this process into `python -m module`, so that signals and exit code are its own."""
    if missing := machine.missing_stack():
        console.refuse(f"{', '.join(missing)} not installed: {machine.INSTALL}", console.FAILED)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
