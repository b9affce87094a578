"""Start Ray, the engine and the workers side by side: most of the wait is imports and other processes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, open_dict

from verl_omni.trainer.fork_server import ForkingCluster, can_fork_workers

Say = Callable[[str], None]
# A worker group asks for a CPU per colocated role and bundle, and each agent, reward, server and router actor
# for one; on a host these are logical numbers (verl/single_controller/ray/base.py, `max_colocate_count`).
LOGICAL_CPUS = 16
STOP_SECONDS = 60.0  # for an engine to end by itself
LOG_LEVEL = "SAGEMAKER_CONTAINER_LOG_LEVEL"


class Cluster(Protocol):
    """The Ray that a run uses."""

    def stop(self) -> None:
        """Leave it, and end what was started here."""


@dataclass
class PlainCluster:
    """Ray as `ray.init` starts or finds it."""

    started_here: bool

    def stop(self) -> None:
        """See `Cluster`."""
        import ray

        if self.started_here:
            ray.shutdown()


@dataclass
class Stack:
    """Everything that runs beside the driver."""

    workers: Any  # RayWorkerGroup of DiffusionActorRolloutWorker
    servers: Any  # LLMServerManager
    agent_loop: Any  # AgentLoopManager
    weights: Any  # CheckpointEngineManager
    ray: Cluster
    deadline: float  # seconds for an answer of a replica

    def versions(self) -> list[int]:
        """Version of the weights that each rollout replica says it serves.

        Raises:
            ReplicaCallFailed: one did not say it within `deadline`.
        """
        import ray

        from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed

        asked = [server.get_global_steps.remote() for server in self.servers.server_handles]
        said, _ = ray.wait(asked, num_returns=len(asked), timeout=self.deadline)
        if silent := [str(replica) for replica, answer in enumerate(asked) if answer not in said]:
            raise ReplicaCallFailed(f"replica {', '.join(silent)} did not say its version within {self.deadline:g} s")
        found: list[int] = ray.get(asked)
        return found

    def stop(self) -> None:
        """End engines before Ray, so that they remove their shared memory.

        Safe after a failure, of engines too; one that does not answer is killed.
        """
        import ray

        servers = self.servers.server_handles
        try:
            endings = {server.shutdown.remote(): server for server in servers}
            ended, silent = ray.wait(list(endings), num_returns=len(endings), timeout=STOP_SECONDS)
            for ending in silent:
                ray.kill(endings[ending])
            for ending in ended:
                with contextlib.suppress(ray.exceptions.RayActorError):  # it is gone already
                    ray.get(ending)
            # An actor that ends by itself removes its semaphores from /dev/shm; one that is killed does not.
            last = [endings[ending].__ray_terminate__.remote() for ending in ended]
            if last:
                ray.wait(last, num_returns=len(last), timeout=10)
        finally:
            self.ray.stop()


def prepare_environment(has_accelerator: bool) -> None:
    """Variables that must be set before Ray, torch and verl are imported; what the user set stays."""
    wanted = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "RAY_DEDUP_LOGS": "0",
        # A library that vLLM's server imports lets no warning through, of anybody's, unless this says so
        # (model_hosting_container_standards/logging_config.py).
        LOG_LEVEL: "WARNING",
    }
    if not has_accelerator:
        wanted |= {
            "VERL_PLATFORM": "cpu",
            # Two threads on two busy cores cost seven times one thread's seconds (docs/adr/0005).
            "OMP_NUM_THREADS": "1",
            # Ray runs workers at nice 15, where they starve beside any busy process.
            "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
    # A random token of this run alone: without one, Ray writes a token file into the home folder.
    # Ray reads it when it is imported, so afterwards it would be known to its servers alone.
    if not {"RAY_AUTH_MODE", "RAY_ADDRESS"} & os.environ.keys() and "ray" not in sys.modules:
        import secrets

        wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def accelerator_present() -> bool:
    """Whether this host has an NVIDIA or Ascend device, without importing torch."""
    devices = ("/dev/nvidiactl", "/dev/davinci_manager")
    return os.environ.get("VERL_PLATFORM") != "cpu" and any(Path(device).exists() for device in devices)


def fit_to_machine(config: DictConfig, has_accelerator: bool) -> None:
    """Fill in the settings that are null because they depend on the machine or the model.

    Raises:
        FileNotFoundError: the model's folder is none of diffusers'.
        ValueError: there is no family for the model, or the engine cannot run so on this machine.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    with open_dict(config):
        _fit_to_model(model, rollout)
        engine = rollout.engine_kwargs.vllm_omni
        if engine.distributed_executor_backend is None:
            engine.distributed_executor_backend = "mp" if has_accelerator else "uni"
        if engine.distributed_executor_backend == "mp" and not (has_accelerator or rollout.step_execution):
            # vllm_omni/diffusion/worker/diffusion_worker.py, `_async_output_loop`: its thread ends at the first line.
            raise ValueError(
                "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.distributed_executor_backend: with mp a worker "
                "hands whole samples over on a stream of its device, which a host has not, and the engine would wait "
                "for ever; it needs uni, or actor_rollout_ref.rollout.step_execution=true"
            )
        if config.trainer.fork_workers is None:
            # Never with an accelerator: its context does not survive a fork.
            ray_init = config.ray_kwargs.ray_init
            own_ray = ray_init.get("address", "local") == "local" and not ray_init.keys() - {"address", "num_cpus"}
            config.trainer.fork_workers = own_ray and not has_accelerator and can_fork_workers()
        if rollout.enable_sleep_mode is None:
            rollout.enable_sleep_mode = has_accelerator


def _fit_to_model(model: DictConfig, rollout: DictConfig) -> None:
    """What the model's folder and its family say.

    Raises:
        FileNotFoundError: the folder is none of diffusers'.
        ValueError: there is no family for the model.
    """
    from verl_omni.pipelines.registry import training_adapter

    folder = Path(model.path)
    index, tokenizer = folder / "model_index.json", folder / "tokenizer" / "tokenizer_config.json"
    if not index.is_file():
        raise FileNotFoundError(f"{index} not found: model.path must be a model in diffusers' folder layout")
    if model.architecture is None:
        model.architecture = json.loads(index.read_text())["_class_name"]
    family = training_adapter(model.architecture)
    if model.tokenizer_path is None:
        model.tokenizer_path = f"{model.path}/tokenizer"
    if model.custom_chat_template is None:
        model.custom_chat_template = family.CHAT_TEMPLATE
    if model.target_modules is None:
        model.target_modules = list(family.LORA_TARGETS)
    if model.fsdp_layer_prefixes is None:
        model.fsdp_layer_prefixes = list(family.LAYERS)
    if rollout.max_prompt_embed_length is None:
        length = json.loads(tokenizer.read_text())["model_max_length"] if tokenizer.is_file() else 0
        rollout.max_prompt_embed_length = family.prompt_rows(rollout.pipeline.max_sequence_length, int(length))


def start(config: DictConfig, say: Say) -> Stack:
    """Bring everything up; `say` is told what is being waited for."""
    return start_actors(config, start_ray(config, say), say)


def start_ray(config: DictConfig, say: Say) -> Cluster:
    """Start Ray and import whatever takes long to import, side by side.

    Raises:
        ValueError: `ray_kwargs.ray_init` asks for something that forked workers cannot have.
    """
    say("starting Ray, importing the training stack")
    options = dict(config.ray_kwargs.ray_init)
    address = options.pop("address", "local")
    cpus = options.pop("num_cpus", None) or max(LOGICAL_CPUS, os.cpu_count() or 1)
    here = {
        "num_cpus": cpus,
        "num_gpus": config.trainer.n_gpus_per_node,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",  # one machine: nothing listens on its other addresses
    }
    if config.trainer.fork_workers:
        if address != "local" or options:
            raise ValueError("trainer.fork_workers=true goes with ray_kwargs.ray_init.num_cpus alone")
        from verl_omni.pipelines.registry import family

        return ForkingCluster([family(config.actor_rollout_ref.model.architecture).engine_module], **here)
    with ThreadPoolExecutor(1, thread_name_prefix="startup") as pool:
        imported = pool.submit(_import_everything)
        # Here and not in the other thread: Ray's servers die with the thread that started them (PR_SET_PDEATHSIG).
        cluster = _join(address, options) if address != "local" else _local(here | options)
        try:
            imported.result()
        except BaseException:
            cluster.stop()
            raise
    return cluster


def start_actors(config: DictConfig, cluster: Cluster, say: Say) -> Stack:
    """Start the engine, the trainer, agent and reward workers; the cluster is ended if that fails."""
    try:
        return _start_actors(config, say, cluster)
    except BaseException:
        cluster.stop()
        raise


def _local(options: dict[str, Any]) -> Cluster:
    import ray

    ray.init(address="local", log_to_driver=True, **options)
    return PlainCluster(started_here=True)


def _join(address: str, options: dict[str, Any]) -> Cluster:
    import ray

    prefixes = ("VERL_", "OMP_", "HF_", "HCCL_", LOG_LEVEL)
    passed = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    ray.init(address=address, runtime_env={"env_vars": passed}, **options)
    return PlainCluster(started_here=False)


def _import_everything() -> None:
    """What the driver needs later; imported while Ray starts."""

    import verl_omni.agent_loop
    import verl_omni.workers.engine_workers
    import verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server  # noqa: F401


def _start_actors(config: DictConfig, say: Say, cluster: Cluster) -> Stack:
    import ray
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.llm_server import LLMServerManager

    from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
    from verl_omni.workers.engine_workers import DiffusionActorRolloutWorker
    from verl_omni.workers.rollout.llm_server import DiffusionLLMServerClient

    settings = config.actor_rollout_ref
    say("starting the rollout engine and the workers")
    rewards = RewardLoopManager(config, rm_resource_pool=None)
    pool = RayResourcePool(
        process_on_nodes=[config.trainer.n_gpus_per_node] * config.trainer.nnodes,
        use_gpu=True, name_prefix="actor", max_colocate_count=1,
    )  # fmt: skip
    workers = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(DiffusionActorRolloutWorker), config=settings),
        device_name=_device_name(),
    )
    with ThreadPoolExecutor(2, thread_name_prefix="startup") as threads:
        servers_up = threads.submit(LLMServerManager.create, config, worker_group=workers)
        (device,) = set(workers.init_model())
        say(f"waiting for the rollout engine; the policy is trained on {workers.world_size} x {device}")
        servers = servers_up.result()
    say("starting the agent loop")
    client = servers.get_client(client_cls=DiffusionLLMServerClient)
    agent_loop = DiffusionAgentLoopManager.create(config, client, None, rewards.reward_loop_worker_handles)
    weights = CheckpointEngineManager(
        config=omega_conf_to_dataclass(settings.rollout.checkpoint_engine),
        actor_wg=workers, replicas=servers.get_replicas(),
    )  # fmt: skip
    return Stack(workers, servers, agent_loop, weights, cluster, deadline=settings.rollout.deadline_seconds)


def _device_name() -> str:
    from verl.utils.device import get_device_name

    return str(get_device_name())
