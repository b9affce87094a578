"""`StopOnSignal`: how the training program is asked to stop."""

from __future__ import annotations

import signal


class StopOnSignal:
    """Signal handler: the first SIGINT or SIGTERM requests a stop after the step, the second stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.listen()

    def listen(self) -> None:
        """Install the handlers (again)."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
