"""Start-up of a run: Ray, the rollout engine and the workers, started concurrently."""

from __future__ import annotations

import copy
import os
import random
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, open_dict

from verl_omni.platforms.cpu import process_tuning
from verl_omni.platforms.cpu.fork_server import ForkingCluster, can_fork_workers
from verl_omni.trainer.data import run_length
from verl_omni.trainer.replicas.pool_nodes import wait_for_nodes
from verl_omni.trainer.replicas.replica_pool import ReplicaPool
from verl_omni.trainer.replicas.replica_updates import ReplicaUpdates
from verl_omni.trainer.run import machine
from verl_omni.trainer.settings import (
    cpu_values,
    judge_settings,
    model_settings,
    pool_settings,
    process_counts,
    scorer_devices,
    sequence_split,
    tensor_split,
)
from verl_omni.trainer.settings.async_settings import batches_ahead
from verl_omni.trainer.stack import Cluster, Stack
from verl_omni.utils import rendezvous_ports
from verl_omni.workers.actor.setting_checks import check_fsdp_size
from verl_omni.workers.algorithms import registry

if TYPE_CHECKING:
    from verl_omni.trainer.settings.step_parts import StepParts

ReportPhase = Callable[[str], None]
# Minimum; each actor needs one (verl/single_controller/ray/base.py, `max_colocate_count`). Ray's CPUs are logical, so
# there may be more than cores.
LOGICAL_CPUS = 16
LOG_LEVEL = "SAGEMAKER_CONTAINER_LOG_LEVEL"
PASSED_PREFIXES = ("VERL_", "OMP_", "HF_", "HCCL_", LOG_LEVEL)
# The address of the driver's node is wrong on every other one; tokens are for the driver, which sends results.
OF_THE_DRIVER = ("HCCL_IF_IP", "HF_TOKEN")


def prepare_environment(has_accelerator: bool) -> None:
    """Set the variables that Ray, torch and verl read when they are imported; the user's values stay."""
    defaults = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "RAY_DEDUP_LOGS": "0",
        # Below `uv run`, Ray would start every worker with `uv run` too, in an uploaded copy of the current folder.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # Without it, a library that vLLM's server imports silences all warnings of the process
        # (model_hosting_container_standards/logging_config.py).
        LOG_LEVEL: "WARNING",
    }
    if not has_accelerator:
        defaults |= {
            "VERL_PLATFORM": "cpu",
            # Threads that wait give their core to other processes (docs/adr/0005).
            "OMP_WAIT_POLICY": "PASSIVE",
            # But about 10 microseconds later: threads that sleep after every operation take 1.3 times as long.
            "GOMP_SPINCOUNT": "1000",
            # Ray runs workers at nice 15, where any other busy process starves them.
            "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        if "OMP_NUM_THREADS" not in os.environ:
            # One for every process but the engines and the trainer's ranks, of which one kind computes at a time.
            defaults |= {"OMP_NUM_THREADS": "1", process_tuning.THREADS: str(machine.available_cpus())}
    # A random token for this run: without one, Ray writes a token file into the home folder. Ray reads the variable
    # when it is imported; set later, only its servers would have the token.
    if not {"RAY_AUTH_MODE", "RAY_ADDRESS"} & os.environ.keys() and "ray" not in sys.modules:
        import secrets

        defaults |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not os.environ["HF_HUB_OFFLINE"]:  # a pod cannot unset a variable of its image, only empty it
        os.environ["HF_HUB_OFFLINE"] = defaults["HF_HUB_OFFLINE"]


def accelerator_present() -> bool:
    """Whether this machine has an NVIDIA or Ascend accelerator, found without importing torch."""
    devices = ("/dev/nvidiactl", "/dev/davinci_manager")
    return os.environ.get("VERL_PLATFORM") != "cpu" and any(Path(device).exists() for device in devices)


def fit_to_machine(config: DictConfig, has_accelerator: bool, cpus: int | None = None) -> None:
    """Fill in the settings whose default depends on the machine, the model or the length of the run.

    Args:
        cpus: CPUs of each node; None: this machine's.

    Raises:
        FileNotFoundError: the model is not a folder in diffusers' layout, or a data file does not exist.
        ValueError: no model family matches, the data set is smaller than a batch, a number of workers is not positive,
            or the engine cannot run with these settings on this machine.
    """
    from verl_omni.pipelines.registry import check_encoder, check_prompt_cache  # modules of users register families

    rollout = config.actor_rollout_ref.rollout
    model = config.actor_rollout_ref.model
    with open_dict(config):
        _fit_data(config)
        model_settings.fill_in(model, rollout)
        if config.algorithm.sample_source == "offline":
            check_encoder(model.architecture)
        if config.trainer.adapter_save_freq > 0 and model.lora_rank <= 0:
            raise ValueError("trainer.adapter_save_freq: there is no adapter, because all weights are trained; write 0")
        _fit_precision(config.actor_rollout_ref, has_accelerator)
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        check_fsdp_size(ranks, config.actor_rollout_ref.actor.fsdp_config.fsdp_size)
        sequence_split.check(config)
        config.trainer.total_training_steps = run_length.total_steps(config)
        optim = config.actor_rollout_ref.actor.optim
        if optim.total_training_steps <= 0:
            optim.total_training_steps = registry.optimizer_steps(config)
        if optim.lr_warmup_steps <= 0:
            optim.lr_warmup_steps = int(optim.lr_warmup_steps_ratio * optim.total_training_steps)
        engine = rollout.engine_kwargs.vllm_omni
        if engine.distributed_executor_backend is None:
            engine.distributed_executor_backend = "mp" if has_accelerator else "uni"
        if engine.distributed_executor_backend == "mp" and not (has_accelerator or rollout.step_execution):
            # vllm_omni/diffusion/worker/diffusion_worker.py, `_async_output_loop`: without streams its thread exits.
            raise ValueError(
                "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.distributed_executor_backend: mp needs an "
                "accelerator (its worker returns samples on a stream); write uni, or set "
                "actor_rollout_ref.rollout.step_execution=true"
            )
        if config.trainer.fork_workers is None:
            # Not with an accelerator: its context does not survive a fork.
            ray_init = config.ray_kwargs.ray_init
            own_ray = ray_init.get("address", "local") == "local" and not ray_init.keys() - {"address", "num_cpus"}
            config.trainer.fork_workers = own_ray and not has_accelerator and can_fork_workers()
        if not has_accelerator:
            cpu_values.fill_in(config)
        tensor_split.check(config)
        if rollout.prompt_cache_dir:
            check_prompt_cache(model.architecture, rollout.tensor_model_parallel_size)
        pool_settings.fill_in(rollout, has_accelerator=has_accelerator)
        judge_settings.fill_in(config, has_accelerator=has_accelerator)
    process_counts.fill_in(config, machine.available_cpus() if cpus is None else cpus)


def _fit_data(config: DictConfig) -> None:
    """Numbers of `data` that are null: the order depends on the run's seed, and all rows are used."""
    data = config.data
    data.seed = int(config.trainer.seed if data.seed is None else data.seed)
    for name in ("train_max_samples", "val_max_samples"):
        data[name] = -1 if data[name] is None else int(data[name])


def _fit_precision(settings: DictConfig, has_accelerator: bool) -> None:
    """Fill in dtypes and activation checkpointing: for the memory of an accelerator, or for the speed of a CPU."""
    model = settings.model
    fsdp = settings.actor.fsdp_config
    rollout = settings.rollout
    dtype = "bfloat16" if has_accelerator else "float32"
    if fsdp.mixed_precision.param_dtype is None:
        fsdp.mixed_precision.param_dtype = dtype
    if rollout.dtype is None:
        rollout.dtype = dtype
    if model.enable_gradient_checkpointing is None:
        model.enable_gradient_checkpointing = has_accelerator


def start(config: DictConfig, report_phase: ReportPhase) -> Stack:
    """Start everything; `report_phase` gets a description of each phase."""
    return start_actors(config, start_ray(config, report_phase), report_phase)


def start_ray(config: DictConfig, report_phase: ReportPhase) -> Cluster:
    """Start Ray and import the training stack, concurrently.

    Raises:
        ValueError: `ray_kwargs.ray_init` has settings that forked workers do not support, or a pool has accelerators
            that this machine does not have.
    """
    report_phase("starting Ray, importing the training stack")
    options = dict(config.ray_kwargs.ray_init)
    address = options.pop("address", "local")
    if address == "local" and (problem := pool_settings.local_problem(config)):
        raise ValueError(problem)
    cpus = options.pop("num_cpus", None) or max(LOGICAL_CPUS, os.cpu_count() or 1, process_counts.logical_cpus(config))
    needed = process_counts.local_accelerators(config)
    unused = max(0, sum(machine.describe_machine()["accelerators"].values()) - needed)
    here = {
        "num_cpus": cpus,
        "num_gpus": needed + min(unused, scorer_devices.wanted(config.reward)),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",  # one machine: listen on no other address
    }
    if not config.trainer.fork_workers:
        os.environ.pop(process_tuning.THREADS, None)  # processes of other nodes would get it too
    else:
        if address != "local" or options:
            raise ValueError(
                "trainer.fork_workers=true supports no setting of ray_kwargs.ray_init but num_cpus; "
                "write trainer.fork_workers=false"
            )
        from verl_omni.pipelines.registry import family

        engine = family(config.actor_rollout_ref.model.architecture).engine_module
        _divide_threads(config)
        return Cluster(ForkingCluster([engine, *judge_settings.modules(config)], **here).stop)
    import ray  # noqa: F401  not in both threads at once: either would find the other's half of it

    with ThreadPoolExecutor(1, thread_name_prefix="startup") as pool:
        imported = pool.submit(_import_everything)
        # In this thread: Ray's servers die with the thread that started them (PR_SET_PDEATHSIG).
        cluster = _join(address, options) if address != "local" else _local(here | options)
        try:
            imported.result()
        except BaseException:
            cluster.stop()
            raise
    return cluster


def _divide_threads(config: DictConfig) -> None:
    """Divide the threads of a phase between the processes that compute in it."""
    if threads := os.environ.get(process_tuning.THREADS):
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        overlapping = config.actor_rollout_ref.rollout.nnodes > 0
        os.environ[process_tuning.THREADS] = str(
            process_tuning.phase_threads(int(threads), ranks, overlapping=overlapping)
        )


def start_actors(config: DictConfig, cluster: Cluster, report_phase: ReportPhase) -> Stack:
    """Start the engine and the training, agent-loop and reward workers; stop the cluster if that fails."""
    try:
        return _start_actors(config, report_phase, cluster)
    except BaseException:
        cluster.stop()
        raise


def _local(options: dict[str, Any]) -> Cluster:
    import ray

    ray.init(address="local", log_to_driver=True, **options)
    return Cluster(ray.shutdown)


def _join(address: str, options: dict[str, Any]) -> Cluster:
    import ray

    ray.init(address=address, runtime_env={"env_vars": passed_variables(os.environ)}, **options)
    return Cluster(lambda: None)


def passed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the driver that the workers of a running Ray cluster get, also those on other nodes. PURE."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(PASSED_PREFIXES) and name not in OF_THE_DRIVER
    }


def _import_everything() -> None:
    """Import what the driver needs later, while Ray starts."""

    import verl_omni.agent_loop
    import verl_omni.workers.engine_workers
    import verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server  # noqa: F401


def _start_actors(config: DictConfig, report_phase: ReportPhase, cluster: Cluster) -> Stack:
    import ray
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.utils.device import get_resource_name

    from verl_omni.trainer.replicas import actor_nodes
    from verl_omni.trainer.replicas.replica_updates import weight_updates
    from verl_omni.trainer.rewards.reward_workers import start_reward_workers
    from verl_omni.workers.engine_workers import DiffusionActorRolloutWorker
    from verl_omni.workers.rollout.llm_server import DiffusionLLMServerClient

    settings = config.actor_rollout_ref
    wait_for_nodes(config, report_phase)
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if short := scorer_devices.shortage(config, alive, get_resource_name()):
        raise ValueError(short)
    if where := scorer_devices.describe(config.reward, _device_name()):
        report_phase(where)
    report_phase(f"starting the rollout engine and the workers ({process_counts.describe(config)})")
    pool = RayResourcePool(
        process_on_nodes=[config.trainer.n_gpus_per_node] * config.trainer.nnodes,
        use_gpu=True,
        name_prefix="actor",
        max_colocate_count=scorer_devices.colocated(config),
        accelerator_type=config.trainer.node_resource,
    )
    workers = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(DiffusionActorRolloutWorker), config=settings),
        device_name=_device_name(),
        master_port_range=rendezvous_ports.search_range(random.Random()),
    )
    # Copying a configuration, as Hydra does, detaches its nodes for a moment: no two threads may have the same one.
    for_rewards = copy.deepcopy(config)
    for_servers = copy.deepcopy(config)
    with ThreadPoolExecutor(3, thread_name_prefix="startup") as threads:
        rewards_up = threads.submit(start_reward_workers, for_rewards, pool, report_phase)
        if judge_settings.sleeps(config):
            rewards_up.result()  # the judge sleeps before the engine takes the accelerators' memory
        servers_up = threads.submit(
            actor_nodes.PinnedServerManager.create,
            for_servers,
            worker_group=None if settings.rollout.nnodes else workers,
        )
        devices, memory = zip(*workers.init_model(), strict=True)
        report_phase(f"waiting for the rollout engine; the policy is trained on {workers.world_size} x {devices[0]}")
        servers = servers_up.result()
        rewards = rewards_up.result()
    report_phase("starting the agent loop")
    client = servers.get_client(client_cls=DiffusionLLMServerClient, waits=batches_ahead(config) == 0)
    agent_loop = actor_nodes.PinnedAgentLoopManager.create(config, client, None, rewards.reward_loop_worker_handles)
    weights = weight_updates(settings.rollout, workers, servers)
    return Stack(
        workers,
        servers,
        agent_loop,
        rewards,
        weights,
        cluster,
        deadline=settings.rollout.deadline_seconds,
        device_memory=None if None in memory else min(memory),
        pool=_replica_pool(settings.rollout, servers, weights, agent_loop) if settings.rollout.nnodes else None,
        judges=rewards.judge_pool,
    )


def _replica_pool(
    rollout: DictConfig, servers: Any, updates: ReplicaUpdates, agent_loop: Any
) -> ReplicaPool[ReplicaUpdates]:
    """The pool that replaces lost replicas and follows the nodes; it starts with the training.

    With `rollout.node_resource`, there is room on every node that has the resource; without it, for as many replicas as
    the settings say.
    """
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.device import get_resource_name

    from verl_omni.trainer.replicas.replica_launcher import ANSWER_SECONDS, RayLauncher

    parsed = omega_conf_to_dataclass(servers.rollout_config)  # once: replicas start in threads of their own

    def make(rank: int) -> Any:
        return servers.rollout_replica_class(
            replica_rank=rank, config=parsed, model_config=servers.model_config, gpus_per_node=rollout.n_gpus_per_node
        )

    launcher = RayLauncher(
        make,
        places=lambda nodes: pool_settings.room(rollout, nodes, str(get_resource_name())),
        requests=lambda replica: [server.requests_in_flight.remote() for server in replica.servers],
        deadline=rollout.deadline_seconds,
        pinned=rollout.node_resource is not None,
    )
    return ReplicaPool(
        updates,
        launcher,
        first_rank=len(updates.replicas),
        looked=lambda hosts: updates.looked(agent_loop.queued_samples(ANSWER_SECONDS), hosts),
    )


def parts_of_step(config: DictConfig) -> StepParts:
    """How the samples of a step are divided, so that generation and update overlap."""
    from verl_omni.pipelines.registry import training_adapter
    from verl_omni.trainer.settings import step_parts

    pads = getattr(training_adapter(config.actor_rollout_ref.model.architecture), "PADS_PROMPTS", False)
    cores = os.cpu_count() or 1
    if phase := os.environ.get(process_tuning.THREADS):
        threads = process_tuning.shared_threads(int(phase))
    else:
        threads = int((os.environ.get("OMP_NUM_THREADS") or str(cores)).partition(",")[0])  # of the first nested level
    return step_parts.divide(config, device=_device_name(), cores=cores, threads=threads, pads_prompts=pads)


def _device_name() -> str:
    from verl.utils.device import get_device_name

    return str(get_device_name())
