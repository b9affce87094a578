"""One local Ray for the runs of a file: starting Ray and importing the stack is half of a short run's work."""

import contextlib
from collections.abc import Sequence
from typing import Any

from e2e.cluster import deadlines


class SharedRay:
    """The Ray of the first stack or run, for all that follow."""

    def __init__(self) -> None:
        self._cluster: Any = None

    def start(self, config: Any) -> Any:
        """A stack for settings, whose end does not stop Ray."""
        from verl_omni.trainer import startup

        self._prepare(config)
        return startup.start_actors(config, StaysUp(), no_report)

    def train(self, overrides: Sequence[str]) -> None:
        """Run the trainer as its command line does, with its own actors; fails if its exit code is not 0."""
        from verl_omni.trainer import main_diffusion, startup
        from verl_omni.trainer.run import operator_reporter
        from verl_omni.trainer.settings import configuration

        config = configuration.load(overrides)
        self._prepare(config)

        def train_on(run: main_diffusion.Run, resources: contextlib.ExitStack) -> None:
            resources.callback(end_actors)
            main_diffusion.train_on(StaysUp(), run, resources, no_report, lambda: False)

        unused = configuration.without_effect(overrides, config, has_accelerator=startup.accelerator_present())
        with operator_reporter.from_environment() as reporter:
            code = main_diffusion.run_training(config, reporter, train_on, unused)
        assert code == main_diffusion.OK, "the error is in the captured output"

    def _prepare(self, config: Any) -> None:
        from verl_omni.trainer import startup

        accelerated = startup.accelerator_present()
        startup.prepare_environment(accelerated)
        startup.fit_to_machine(config, accelerated)
        if self._cluster is None:
            self._cluster = startup.start_ray(config, no_report)

    def begin(self, architectures: Sequence[str]) -> None:
        """Start Ray before its first run, and before threads of the test; workers import the engines of these models.

        Only where workers are forks.
        """
        from verl_omni.pipelines.registry import family
        from verl_omni.platforms.cpu.fork_server import ForkingCluster
        from verl_omni.trainer.startup import LOGICAL_CPUS, prepare_environment

        if self._cluster is None:
            prepare_environment(has_accelerator=False)
            engines = sorted({family(name).engine_module for name in architectures})
            options = {"num_cpus": LOGICAL_CPUS, "num_gpus": 2, "include_dashboard": False}
            self._cluster = ForkingCluster(engines, **options, _node_ip_address="127.0.0.1")

    def stop(self) -> None:
        """Stop Ray."""
        if self._cluster is not None:
            self._cluster.stop()


def no_report(text: str) -> None:
    """Ignore the phases of the start."""


class StaysUp:
    """What a run takes for its cluster."""

    def stop(self) -> None:
        """The next run needs it."""


def end_actors() -> None:
    """Kill what a run left, as the end of its Ray would, and wait until it is gone: names are given again."""
    import ray
    from ray._private import state
    from ray._private.worker import global_worker
    from ray._raylet import ActorID, PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    for actor in state.actors():  # one that has ended by itself keeps its name until it is killed
        global_worker.core_worker.kill_actor(ActorID.from_hex(actor), True)
    for group, entry in ray.util.placement_group_table().items():
        if entry["state"] != "REMOVED":
            ray.util.remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group)))
    deadlines.wait_until("the actors to end", deadlines.PROCESS_END, lambda: not alive_actors())


def alive_actors() -> list[str]:
    """Ids of the actors that live or start."""
    from ray._private import state

    return [name for name, actor in state.actors().items() if actor["State"] != "DEAD"]
