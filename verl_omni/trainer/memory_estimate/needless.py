"""Offloading and sleep that a run on accelerators does not need, by the estimate of `drl fit`.

`python -m verl_omni.trainer.memory_estimate.needless BYTES` reads a run's settings and prints what to change.
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from verl_omni.trainer import startup
from verl_omni.trainer.memory_estimate import __main__ as fit
from verl_omni.utils.registry import import_modules

logger = logging.getLogger(__name__)


def search(config: DictConfig, capacity: int, report: Callable[[str], None]) -> Callable[[], None]:
    """Estimate the run in another process, which takes seconds to minutes; `report` gets what it does not need.

    Args:
        config: settings of the run, completed by `startup.fit_to_machine`.
        capacity: bytes of one of the trainer's accelerators.

    Returns:
        A function that ends the search.
    """
    command = [sys.executable, "-m", __name__, str(capacity)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def read() -> None:
        printed, errors = process.communicate(OmegaConf.to_yaml(config))
        if process.returncode > 0:
            logger.warning("settings that the run does not need to fit were not searched: %s", errors.strip())
        elif found := "".join(printed.splitlines()[-1:]):  # a user's module may print before
            report(found)

    reader = threading.Thread(target=read, name="needless", daemon=True)
    reader.start()

    def end() -> None:
        process.kill()
        reader.join()

    return end


def describe(config: DictConfig, capacity: int) -> str:
    """What to set, each with what it saves; empty: nothing. Arguments as of `search`."""
    estimate = fit.describe(config, capacity, None, accelerator=True)
    of_trainer = estimate["pools"]["trainer"] if "pools" in estimate else estimate
    changes = [
        f"{change['setting']}={str(change['value']).lower()} (saves: {change['costs']})"
        for change in of_trainer["not_needed"]
    ]
    return f"fits without these, as drl fit estimates: {', '.join(changes)}" if changes else ""


def main() -> None:
    """Print what the run does not need."""
    startup.prepare_environment(has_accelerator=False)  # nothing runs here but fake tensors, on the CPU
    config = OmegaConf.create(sys.stdin.read())
    assert isinstance(config, DictConfig)
    import_modules(config.actor_rollout_ref.model.external_lib)
    sys.stdout.write(f"{describe(config, int(sys.argv[1]))}\n")


if __name__ == "__main__":
    main()
