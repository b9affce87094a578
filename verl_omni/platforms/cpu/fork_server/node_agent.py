"""Program that a local Ray runs in the place of its dashboard agent: `node_agent.py AGENT --NAME=VALUE...`.

Ray's agent reads the metrics of all processes every few seconds, for a dashboard and for Prometheus; a run on a laptop
has neither. This one says, as Ray's does without the packages of the dashboard, that it serves no ports.
"""

import os
import sys
import time

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
POLL_SECONDS = 1.0  # between two looks at whether the raylet still runs


def main() -> int:
    """Report the ports, and wait for the end of the raylet, which starts this program."""
    raylet = os.getppid()
    options = dict(argument.split("=", 1) for argument in sys.argv[2:] if "=" in argument)
    for port in PORTS:
        file = os.path.join(options["--session-dir"], f"{port}_{options['--node-id']}")
        with open(f"{file}.new", "w") as out:
            out.write("-1")
        os.replace(f"{file}.new", file)
    while os.getppid() == raylet:
        time.sleep(POLL_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
