"""Head of a local Ray in a separate process: `python -m verl_omni.platforms.cpu.fork_server.head`.

Its workers are forks of the server whose name is in the environment (`client.SERVER`).

Standard input: one line of JSON, the arguments of `ray.init`; closing it stops Ray. Standard output: one line of JSON
with `address` and `raylet_pid`, once Ray is up.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

CLIENT = str(Path(__file__).with_name("client.py"))
AGENT = str(Path(__file__).with_name("node_agent.py"))


def main() -> int:
    """Start Ray, print its address, and wait until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output goes to the log
    options = json.loads(sys.stdin.readline())
    # Workers that Ray starts in advance, one for each core, are no forks: no actor of the job would use them.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # A worker of a task that has ended, such as the search for a port, ends after a second instead of staying.
    os.environ.setdefault("RAY_num_workers_soft_limit", "0")
    import ray
    from ray._private.node import Node

    # Nothing uses them here: the autoscaler of a cluster of one machine, and the server of the dashboard, which Ray
    # starts without a dashboard too. Together they take 2.6 s of CPU time at the start.
    Node.start_monitor = _start_nothing
    Node.start_api_server = _start_nothing
    Node.start_log_monitor = _monitor_logs
    start_workers_with_client()
    replace_dashboard_agent()
    addresses = ray.init(address="local", log_to_driver=False, **options).address_info
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid
    json.dump({"address": addresses["gcs_address"], "raylet_pid": raylet}, output)
    output.write("\n")
    output.flush()
    sys.stdin.read()
    ray.shutdown()
    return 0


def start_workers_with_client() -> None:
    """Let the nodes that this process starts run `client.py` for each worker.

    Ray's own program imports Ray before it looks at what to do: half a second of CPU time for each worker.
    """
    from ray._private.node import Node

    start_raylet = Node.start_raylet

    def start(node: Any, *arguments: Any, **settings: Any) -> None:
        node._ray_params.setup_worker_path = CLIENT
        start_raylet(node, *arguments, **settings)

    Node.start_raylet = start


def replace_dashboard_agent() -> None:
    """Let the nodes that this process starts run `node_agent.py`, which saves 90 MiB and a second of CPU time."""
    from ray._private import ray_constants, services

    python_command = services._build_python_executable_command_memory_profileable

    def command(component: str, *arguments: Any, **settings: Any) -> list[str]:
        if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
            return [sys.executable, "-S", AGENT]
        return python_command(component, *arguments, **settings)

    services._build_python_executable_command_memory_profileable = command


def _monitor_logs(node: Any) -> None:
    """Send lines of the workers' logs to the driver, in a thread; Ray starts a process of 50 MiB for it."""
    from ray._private.log_monitor import LogMonitor, is_proc_alive

    logging.getLogger(LogMonitor.__module__).setLevel(logging.WARNING)  # else a line for each file
    monitor = LogMonitor(node.node_ip_address, node.get_logs_dir_path(), node.get_gcs_client(), is_proc_alive)
    threading.Thread(target=monitor.run, name="log monitor", daemon=True).start()


def _start_nothing(node: Any, *arguments: Any, **settings: Any) -> None:
    """Stands in for a method of Ray's `Node` that starts a process."""


if __name__ == "__main__":
    sys.exit(main())
