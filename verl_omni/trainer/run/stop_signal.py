"""`StopOnSignal`: how the training program is asked to stop, and what is lost if it stops at once."""

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


def describe_loss(complete: int, saved: int | None, begun: int = 0) -> str:
    """Description of the work lost if a run stops in the middle of a step. PURE.

    Args:
        complete: the last complete step, 0 before the first.
        saved: step of the newest checkpoint; None: there is none.
        begun: step of the checkpoint that the run started from.
    """
    steps = complete - max(saved or 0, begun)
    lost = "the step at work is lost" if steps <= 0 else f"the step at work and {steps} complete before it are lost"
    newest = "there is no checkpoint" if saved is None else f"the newest checkpoint is of step {saved}"
    return f"stopped at once: {lost}; {newest}"
