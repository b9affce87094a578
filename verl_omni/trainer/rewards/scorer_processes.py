"""Starts and stops the processes of scorers that have a pool."""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import GetTimeoutError, RayError
from verl.utils.device import get_resource_name

from verl_omni.reward_loop.part_settings import ScorerPool, pools_of
from verl_omni.reward_loop.scorer_deaths import RESTARTS
from verl_omni.reward_loop.scorer_pools import ScorerProcess, process_name
from verl_omni.trainer.settings import scorer_devices
from verl_omni.utils.root_cause import describe_error
from verl_omni.workers.rollout.vllm_rollout.driver.pool_accelerators import pool_accelerators

PACKAGES = ("ray", "omni-operator")  # what every environment of a pool must have, Ray in the trainer's version
PRINT_VERSIONS = (
    "import json, sys; from importlib.metadata import distributions; "
    "print(json.dumps([sys.version_info[:2], {found.name: found.version for found in distributions()}]))"
)


class ScorerProcesses:
    """The processes of all pools of a run. The constructor waits until all have started.

    Args:
        router: address of the judge that the run serves; None: it serves none.

    Raises:
        ValueError: as of `check_interpreter`.
        RuntimeError: a process did not start.
    """

    def __init__(self, config: DictConfig, router: str | None) -> None:
        reward = config.reward
        pools = pools_of(reward.reward_functions)
        for key, pool in pools.items():
            if pool.python is not None and pool.node_resource is None:  # otherwise it is on other machines
                check_interpreter(f"reward.reward_functions.{key}.pool.python", pool.python)
        offered = {"reward_router_address": router, "model_name": reward.reward_model.model_path}
        self._processes = {key: _start(config, key, pool, offered) for key, pool in pools.items()}
        for key, processes in self._processes.items():
            _wait(key, processes, float(reward.deadline_seconds))

    def stop(self, seconds: float) -> None:
        """Remove the files of the processes, within some seconds."""
        forgetting = [process.forget_deaths.remote() for pool in self._processes.values() for process in pool]
        if forgetting:
            ray.wait(forgetting, num_returns=len(forgetting), timeout=seconds)


def check_interpreter(setting: str, python: str) -> None:
    """Check that an interpreter of this machine can run a process of a scorer, for which Ray would try for minutes.

    Raises:
        ValueError: it does not run, lacks a package, or has another version of Python or Ray; names the setting.
    """
    try:
        printed = subprocess.run([python, "-c", PRINT_VERSIONS], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{setting}: {python} does not run: {error}") from error
    language, packages = json.loads(printed)
    here = list(sys.version_info[:2])
    if language != here:
        raise ValueError(
            f"{setting}: {python} is Python {language[0]}.{language[1]}, and the trainer's is {here[0]}.{here[1]}"
        )
    if missing := [name for name in PACKAGES if name not in packages]:
        raise ValueError(
            f"{setting}: {python} has no package {missing[0]}; make its environment as docs/reference/rewards.md says"
        )
    if packages["ray"] != version("ray"):
        raise ValueError(f"{setting}: {python} has Ray {packages['ray']}, and the trainer has {version('ray')}")


def _start(config: DictConfig, key: str, pool: ScorerPool, offered: dict[str, Any]) -> list[Any]:
    reward = config.reward
    library = config.actor_rollout_ref.model.external_lib
    # Environment variables of the pool's pods, which Ray overwrites with the driver's.
    variables = pool_accelerators(pool.ray_resource).environment if pool.accelerators else {"VERL_PLATFORM": "cpu"}
    options = scorer_devices.pool_options(pool, str(get_resource_name()), variables)
    process = ray.remote(max_restarts=RESTARTS, max_task_retries=RESTARTS)(ScorerProcess)
    return [
        process.options(name=process_name(key, number), **options).remote(
            key,
            OmegaConf.to_container(reward.reward_functions[key], resolve=True),
            offered,
            [library] if isinstance(library, str) else list(library or ()),
            batch_size=int(reward.batch_size),
            deadline_seconds=float(reward.deadline_seconds),
            has_accelerator=pool.n_gpus_per_node > 0,
        )
        for number in range(pool.processes)
    ]


def _wait(key: str, processes: Sequence[Any], seconds: float) -> None:
    where = f"reward.reward_functions.{key}.pool: a process of the scorer"
    try:
        ray.get([process.__ray_ready__.remote() for process in processes], timeout=seconds)
    except GetTimeoutError as error:
        raise RuntimeError(
            f"{where} did not start within {seconds:g} s (reward.deadline_seconds): no node is free for it, or its "
            "interpreter lacks this package, or Ray and Python in the trainer's versions"
        ) from error
    except RayError as error:
        raise RuntimeError(f"{where} did not start: {describe_error(error)}") from error
