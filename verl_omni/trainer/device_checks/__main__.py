"""Command line: `python -m verl_omni.trainer.device_checks --device cuda model` prints a line of JSON for each check.

Each part runs in a separate process: the engine gets a device that no other process uses.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from verl_omni.trainer import startup
from verl_omni.trainer.device_checks import results

PARTS = ("model", "engine")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks of a part. Returns the exit code: 0, or 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m verl_omni.trainer.device_checks", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "npu", "cpu"), required=True)
    parser.add_argument("part", choices=PARTS)
    chosen = parser.parse_args(arguments)
    if chosen.device == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
    startup.prepare_environment(chosen.device != "cpu")
    failed = False
    for result in _run(chosen.part, chosen.device):
        print(json.dumps(asdict(result)), flush=True)
        failed |= not result.passed
    return int(failed)


def _run(part: str, device: str) -> Iterator[results.Result]:
    if part == "model":
        from verl_omni.trainer.device_checks import model_checks

        yield from results.run(model_checks.checks(device), needed={model_checks.DEVICE})
        return
    from verl_omni.trainer.device_checks.engine_checks import EngineChecks

    with EngineChecks(device).running() as engine:
        checks = engine.checks()
        yield from results.run(checks, needed=checks)


if __name__ == "__main__":
    sys.exit(main())
