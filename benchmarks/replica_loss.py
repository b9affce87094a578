"""Seconds from the loss of a rollout replica to the first sample of the one that replaces it, and their parts.

    python benchmarks/replica_loss.py [--repeats N] [--out FILE]

A training run on a Ray cluster with a node for each pod: one for the trainer, one for the only replica, with the real
engine. In each step, the node of the replica is killed while it generates, and another one like it is added at once, as
KubeRay replaces a lost pod. The trainer starts a replica there, which gets the weights and generates what is left; no
other replica could. The first step is not counted. The parts, from the driver's events where they say it:

- scheduling: from the kill until the replacement has a node. The driver notices the loss and begins to start another
  replica when it looks the next time (`replica_pool.POLL_SECONDS`), the new node joins Ray, and Ray finds it, which is
  in `place_s` of the event of the replica that joined;
- start: its `start_s`, until the engine is ready;
- sync: its `sync_s`, the wait for the next look and a weight update;
- sample: from that event until one sample less is to be generated.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from results import arguments, spread, table, write

PARTS = ("scheduling", "start", "sync", "sample")
SAMPLES = 16  # of a step, one after the other
POLL = 0.02
DEADLINE = 300.0
# Not 127.0.0.1, which ray.init replaces by the machine's own address, where these nodes do not listen.
ADDRESS = {"node_ip_address": "127.0.0.2"}
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and its replacement.

    Attributes:
        lost, joined, sample: times of the kill, of the event of the replica that joined, and of its first sample.
        start_s, sync_s: fields of the event.
        node_s: seconds from the kill until the new node was part of the Ray cluster.
        failed_starts: starts of replicas that failed in between.
    """

    lost: float
    joined: float
    sample: float
    start_s: float
    sync_s: float
    node_s: float
    failed_starts: int

    def parts(self) -> dict[str, float]:
        """Seconds of each of `PARTS`, which add up to the whole time."""
        scheduling = self.joined - self.lost - self.start_s - self.sync_s
        seconds = (scheduling, self.start_s, self.sync_s, self.sample - self.joined)
        return dict(zip(PARTS, seconds, strict=True))


@dataclass
class Losses:
    """Loses the replica's node in the middle of a generation, and measures what follows.

    Attributes:
        replace: kills the node, and returns when another one has joined.
        queued: number of samples that are not generated yet.
        events: the run's, as its folder has them.
    """

    replace: Callable[[], None]
    queued: Callable[[], int]
    events: Callable[[], list[dict[str, Any]]]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    found: list[Loss] = field(default_factory=list)

    def lose(self) -> None:
        """Measure one loss; a generation of `SAMPLES` has begun, or is about to."""
        self._wait(lambda: 1 < self.queued() < SAMPLES, "the generation has not begun")
        known = len(self.events())
        lost = self.clock()
        self.replace()
        node_s = self.clock() - lost
        left = self.queued()
        self._wait(lambda: bool(joined_in(self.events()[known:])), "no replica joined")
        joined = self.clock()
        new = self.events()[known:]
        self._wait(lambda: self.queued() < left, "the replica that joined generated nothing")
        times = joined_in(new)[0]
        failed = sum(event.get("reason") == "ReplicaNotStarted" for event in new)
        self.found.append(Loss(lost, joined, self.clock(), times["start_s"], times["sync_s"], node_s, failed))

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        latest = self.clock() + DEADLINE
        while not condition():
            if self.clock() > latest:
                raise TimeoutError(f"{otherwise} within {DEADLINE:g} s")
            self.sleep(POLL)


def joined_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of replicas that joined and have the weights."""
    return [event for event in events if "sync_s" in event]


def summary(losses: list[Loss]) -> dict[str, Any]:
    """A row: the whole time, and seconds and share of each part."""
    totals = [loss.sample - loss.lost for loss in losses]
    parts = [loss.parts() for loss in losses]
    row: dict[str, Any] = {
        "losses": len(losses),
        "failed_starts": sum(loss.failed_starts for loss in losses),
        **spread("total_s", totals),
        **spread("node_s", [loss.node_s for loss in losses]),
    }
    for part in PARTS:
        seconds = [seconds_by_part[part] for seconds_by_part in parts]
        row |= spread(f"{part}_s", seconds)
        row |= spread(f"{part}_share", [share / total for share, total in zip(seconds, totals, strict=True)])
    return row


def measure(folder: Path, losses: int, done: Callable[[list[Loss]], None]) -> None:
    """Run a training of as many steps, lose the replica in each, and say what was found before Ray is shut down."""
    from verl_omni.trainer import startup
    from verl_omni.trainer.stack import Cluster, Stack

    startup.prepare_environment(has_accelerator=False)  # before Ray is imported
    from ray.cluster_utils import Cluster as RayNodes

    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
    from verl_omni.trainer import main_diffusion

    model = folder / "model"
    prompts = folder / "prompts.jsonl"
    run = folder / "run"
    make_tiny_sd3(model)
    prompts.write_text('{"prompt": "a red circle"}\n', encoding="utf-8")
    started = RayNodes(
        initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **ADDRESS}
    )
    start = startup.start_actors
    nodes: list[Any] = []
    measured: list[Losses] = []

    def add_node(pool: str, cpus: int) -> Any:
        return started.add_node(num_cpus=cpus, num_gpus=1, resources={pool: 1}, **ADDRESS)

    def replace() -> None:
        started.remove_node(nodes.pop(), allow_graceful=False)
        nodes.append(add_node("omni_rollout", 4))

    def starting(config: Any, cluster: Cluster, report_phase: Callable[[str], None]) -> Stack:
        stack = start(config, cluster, report_phase)
        generate = stack.agent_loop.generate_sequences
        losses = Losses(replace, lambda: stack.agent_loop.queued_samples(DEADLINE), lambda: events_of(run))
        measured.append(losses)

        def generating(made_of: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                generation = pool.submit(generate, made_of)
                losses.lose()  # in the main thread: Ray's servers die with the thread that started them
                return generation.result()

        stack.agent_loop.generate_sequences = generating
        return stack

    startup.start_actors = starting
    try:
        add_node("omni_trainer", 16)
        nodes.append(add_node("omni_rollout", 4))
        code = main_diffusion.main(settings_of(model, prompts, run, losses, started.address))
        if code:
            raise RuntimeError(f"the run ended with exit code {code}")
        done(measured[0].found)
    finally:
        import ray

        startup.start_actors = start
        ray.shutdown()  # the driver joined the cluster, which refuses to lose the node of a driver
        started.shutdown()


def settings_of(model: Path, prompts: Path, run: Path, steps: int, address: str) -> list[str]:
    """The run: small, with one standalone replica that generates one sample after the other."""
    return [
        f"data.train_files='{prompts}'",
        "data.val_files=null",
        "data.train_batch_size=1",
        "data.max_prompt_length=16",
        f"trainer.default_local_dir='{run}'",
        f"trainer.total_training_steps={steps}",
        "trainer.save_freq=0",
        "trainer.node_resource=omni_trainer",
        "reward.scorer=brightness",
        f"actor_rollout_ref.model.path='{model}'",
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        f"{ROLLOUT}.nnodes=1",
        f"{ROLLOUT}.n_gpus_per_node=1",
        f"{ROLLOUT}.node_resource=omni_rollout",
        f"{ROLLOUT}.n={SAMPLES}",
        f"{ROLLOUT}.max_num_seqs=1",
        f"{ROLLOUT}.pipeline.max_sequence_length=16",
        f"{ROLLOUT}.pipeline.height=64",
        f"{ROLLOUT}.pipeline.width=64",
        f"{ROLLOUT}.pipeline.num_inference_steps=20",
        f"ray_kwargs.ray_init.address='{address}'",
    ]


def events_of(run: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's `progress.jsonl`."""
    text = (run / "progress.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def run(results: Connection, losses: int) -> None:
    """Main function of the process of the run, which sends what it has measured.

    A replica may be about to start at the end. Ray ends a process in which a thread still waits for that after the
    shutdown.
    """
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), losses, lambda found: results.send([asdict(loss) for loss in found]))


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "replica_loss", repeats=5).parse_args()
    load = os.getloadavg()[0]
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run, args=(theirs, chosen.repeats + 1))
    process.start()
    theirs.close()
    losses = [Loss(**fields) for fields in ours.recv()]
    process.join()
    from verl_omni.trainer.replicas.replica_pool import POLL_SECONDS

    rows = [summary(losses[1:])]
    write(chosen.out, rows, poll_s=POLL_SECONDS, samples=SAMPLES, load=load)
    table(rows, ["total_s", *(f"{part}_share" for part in PARTS), *(f"{part}_s" for part in PARTS), "node_s"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
