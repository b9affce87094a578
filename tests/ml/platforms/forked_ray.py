"""Run by test_fork_server.py: a Ray whose workers are forks. Prints the ids of all processes that there were."""

import gc
import importlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from verl_omni.trainer import startup

startup.prepare_environment(has_accelerator=False)
from verl_omni.platforms.cpu.fork_server import ForkingCluster, can_fork_workers  # noqa: E402
from verl_omni.platforms.cpu.fork_server.cluster import NOT_NEEDED  # noqa: E402
from verl_omni.platforms.cpu.fork_server.head import CLIENT  # noqa: E402

MODULES = 9_200  # 9,580 with those that only accelerators need
PROCESSES = (
    6  # fork server; Ray's head, GCS, raylet, agent of runtime environments, and the program instead of the other
)

assert can_fork_workers()
cluster = ForkingCluster(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1")
import ray  # noqa: E402

assert not can_fork_workers()
assert gc.isenabled() and gc.get_freeze_count() > 100_000, "what was imported is exempt from collections"

imported = sorted(name for name in NOT_NEEDED if name in sys.modules)
assert not imported, f"imported, though nothing needs it on a CPU: {imported}"
assert len(sys.modules) < MODULES, len(sys.modules)
assert importlib.import_module("scipy.signal").resample_poly, "a scorer of the user's may need it"


def drawn() -> set[str]:
    """Ids of Ray's own, of this thread and of one that is new."""
    with ThreadPoolExecutor(1) as pool:
        return {ray.ObjectID.from_random().hex(), pool.submit(ray.ObjectID.from_random).result().hex()}


class Probe:
    def drawn(self) -> set[str]:
        return drawn()

    def about(self) -> tuple[int, str | None, bool]:
        print("a line of a worker")
        return os.getpid(), os.environ.get("MARK"), "verl" in sys.modules


one = ray.remote(Probe).options(runtime_env={"env_vars": {"MARK": "one"}}).remote()
two = ray.remote(Probe).options(runtime_env={"env_vars": {"MARK": "two"}}).remote()
(pid, mark, ready), (other, other_mark, _) = ray.get([one.about.remote(), two.about.remote()], timeout=60)
assert (mark, other_mark) == ("one", "two")
assert ready, "a fork has what its parent had imported"
assert pid != other
assert psutil.Process(pid).ppid() == cluster._server
ids = [drawn(), *ray.get([one.drawn.remote(), two.drawn.remote()], timeout=60)]
assert len(set.union(*ids)) == 6, "Ray gives no two things one id"

ray.kill(one)
psutil.Process(pid).wait(30)
assert ray.get(two.about.remote(), timeout=60)[0] == other


@ray.remote
def pid_of_task() -> int:
    return os.getpid()


worker_of_task = psutil.Process(ray.get(pid_of_task.remote(), timeout=60))
worker_of_task.wait(30)  # else Ray keeps one such worker for each core
everyone = psutil.Process().children(recursive=True)
idle = [p.pid for p in everyone if "ray::IDLE" in p.cmdline() and p.ppid() != cluster._server]
assert not idle, "Ray has started workers that are no forks, which no actor can use"
forks = [p for p in everyone if p.ppid() == cluster._server]
clients = [p for p in everyone if CLIENT in p.cmdline()]
others = [p.cmdline()[:3] for p in everyone if p not in forks + clients]
assert len(clients) == len(forks) and len(others) == PROCESSES, others
time.sleep(2)  # lines of workers reach the driver within a second
cluster.stop()
deadline = time.monotonic() + 30
while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in everyone) and time.monotonic() < deadline:
    time.sleep(0.2)
print(",".join(str(p.pid) for p in everyone))
