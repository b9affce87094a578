"""Head of a local Ray in a separate process: `python -m verl_omni.platforms.cpu.fork_server.head`.

Standard input: one line of JSON, the arguments of `ray.init`; closing it stops Ray. Standard output: one line of JSON
with `address` and `raylet_pid`, once Ray is up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

IDLE_AGENT = str(Path(__file__).with_name("idle_agent.py"))
PROCESS_TYPE_DASHBOARD_AGENT = "dashboard_agent"  # as in Ray's ray_constants
BuildCommand = Callable[..., list[str]]


def main() -> int:
    """Start Ray, print its address, and wait until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output goes to the log
    options = json.loads(sys.stdin.readline())
    # Workers that Ray starts in advance, one for each core, are no forks: no actor of the job would use them.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    import ray
    from ray._private import services
    from ray._private.node import Node

    # Nothing uses them here: the autoscaler of a cluster of one machine, and the server and the agent of the dashboard,
    # which Ray starts without a dashboard too. Together they take 4 s of CPU time at the start.
    Node.start_monitor = _start_nothing
    Node.start_api_server = _start_nothing
    build = services._build_python_executable_command_memory_profileable
    services._build_python_executable_command_memory_profileable = _with_idle_agent(build)
    found = ray.init(address="local", log_to_driver=False, **options).address_info
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid
    json.dump({"address": found["gcs_address"], "raylet_pid": raylet}, output)
    output.write("\n")
    output.flush()
    sys.stdin.read()
    ray.shutdown()
    return 0


def _with_idle_agent(build: BuildCommand) -> BuildCommand:
    """A function of Ray's `services` for Python's part of a command, with our program for the dashboard's agent."""

    def build_command(component: str, *arguments: Any, **settings: Any) -> list[str]:
        if component == PROCESS_TYPE_DASHBOARD_AGENT:
            return [sys.executable, "-S", "-E", IDLE_AGENT]
        return build(component, *arguments, **settings)

    return build_command


def _start_nothing(node: Any, *arguments: Any, **settings: Any) -> None:
    """Stands in for a method of Ray's `Node` that starts a process."""


if __name__ == "__main__":
    sys.exit(main())
