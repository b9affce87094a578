"""Program that the raylet starts instead of its dashboard agent: `python -S -E idle_agent.py --node-id=ID ...`.

The raylet needs an agent that lives as long as it does, and the agent's ports. Ray's own imports 130 MiB to report
metrics that no job reads here.
"""

import os
import sys
import time

# Files in the session's folder, as of an agent with `--minimal`: -1 stands for a service that is not used.
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
CHECK_SECONDS = 1.0  # between two checks that the raylet is alive


def main() -> int:
    """Say that no service is used, and wait for the end of the raylet."""
    raylet = int(os.environ["RAY_RAYLET_PID"])
    options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv if "=" in argument)
    for port in PORTS:
        file = os.path.join(options["session-dir"], f"{port}_{options['node-id']}")
        with open(f"{file}.new", "w", encoding="ascii") as new:
            new.write("-1")
        os.replace(f"{file}.new", file)  # the raylet reads it as soon as it exists
    while os.getppid() == raylet:
        time.sleep(CHECK_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
