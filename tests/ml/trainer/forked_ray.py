"""Run by test_fork_server.py: a Ray whose workers are forks. Prints the ids of all processes that there were."""

import os
import sys
import time

import psutil

from verl_omni.trainer import startup

startup.prepare_environment(has_accelerator=False)
from verl_omni.trainer.fork_server import ForkingCluster, possible  # noqa: E402

assert possible()
cluster = ForkingCluster(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1")
import ray  # noqa: E402

assert not possible()


class Probe:
    def about(self) -> tuple[int, str | None, bool]:
        return os.getpid(), os.environ.get("MARK"), "verl" in sys.modules


one = ray.remote(Probe).options(runtime_env={"env_vars": {"MARK": "one"}}).remote()
two = ray.remote(Probe).options(runtime_env={"env_vars": {"MARK": "two"}}).remote()
(pid, mark, ready), (other, other_mark, _) = ray.get([one.about.remote(), two.about.remote()], timeout=60)
assert (mark, other_mark) == ("one", "two")
assert ready, "a fork has what its parent had imported"
assert pid != other
assert psutil.Process(pid).ppid() == cluster._server

ray.kill(one)
psutil.Process(pid).wait(30)
assert ray.get(two.about.remote(), timeout=60)[0] == other

everyone = psutil.Process().children(recursive=True)
cluster.stop()
deadline = time.monotonic() + 30
while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in everyone) and time.monotonic() < deadline:
    time.sleep(0.2)
print(",".join(str(p.pid) for p in everyone))
