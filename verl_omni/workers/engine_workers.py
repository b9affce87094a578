"""The Ray worker that trains the policy and sends its weights to the colocated rollout replica."""

import asyncio
import collections
import logging
import time
from collections.abc import Generator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import ray
import torch
from omegaconf import DictConfig
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import (
    Dispatch,
    Execute,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.utils.config import omega_conf_to_dataclass

from verl_omni.platforms.cpu.process_tuning import use_phase_threads
from verl_omni.reference_names import missing_name
from verl_omni.utils import sample_store
from verl_omni.weight_sync.errors import WeightSyncError
from verl_omni.weight_sync.messages import HeaderMessage, StreamAddress
from verl_omni.weight_sync.tcp_sender import StreamSender
from verl_omni.workers.actor.background_write import BackgroundWrite
from verl_omni.workers.actor.device_flops import utilisation
from verl_omni.workers.actor.policy import PolicyName
from verl_omni.workers.config.diffusion.dtypes import parse_dtype
from verl_omni.workers.config.diffusion.reference_fields import check_copies
from verl_omni.workers.rollout.network_settings import network_deadline, network_key

logger = logging.getLogger(__name__)
ROWS = "rows"  # verl's name of the division of a batch over the ranks


class DiffusionActorRolloutWorker(Worker):  # type: ignore[misc]
    """One rank of the trained model, colocated with one rank of a rollout replica (verl's hybrid mode).

    With standalone replicas (`rollout.nnodes` > 0) it has its accelerator for itself, and rank 0 sends the weights.

    Args:
        config: settings below `actor_rollout_ref`.
    """

    _sends_average = False
    _part_seconds = 0.0

    def __init__(self, config: DictConfig) -> None:
        super().__init__()
        self.config = config
        self._casts: dict[str, int] = {}
        # Ranks that share the sequence of a sample get the same rows, and one of them reports their metrics.
        group, position = divmod(self.rank, config.actor.fsdp_config.ulysses_sequence_parallel_size)
        self._register_dispatch_collect_info(ROWS, dp_rank=group, is_collect=position == 0)
        self._writing = BackgroundWrite()
        self._encoder: Any = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> tuple[str, int | None]:
        """Load the model and the weight sender.

        Returns:
            Type of the training device, `cuda`, `npu` or `cpu`, and bytes of its memory; None on a CPU.
        """
        from verl.workers.rollout.base import get_rollout_class

        from verl_omni.workers.actor.actor import DiffusionActor

        rollout = omega_conf_to_dataclass(self.config.rollout)
        model = omega_conf_to_dataclass(self.config.model)
        actor = omega_conf_to_dataclass(self.config.actor)
        check_copies(model, actor, rollout)
        use_phase_threads()
        self.actor = DiffusionActor(model, actor, rollout.n, mesh=self._mesh(), device=_device())
        if rollout.nnodes == 0:
            self.rollout = get_rollout_class(rollout.name, rollout.mode)(
                config=rollout, model_config=model, device_mesh=None
            )
        self.rollout_config = rollout
        device = self.actor.device.type
        return device, None if device == "cpu" else torch.get_device_module(device).mem_get_info()[1]

    def _mesh(self) -> Any:
        """Device mesh of all ranks; None for a single process, which needs no process group."""
        if self.world_size == 1:
            return None
        from verl.utils.device import get_device_name, get_nccl_backend

        from verl_omni.workers.actor.parallel import make_mesh

        if not torch.distributed.is_initialized():
            # After a failure of one rank the driver ends all of them; this ends those that it cannot reach.
            torch.distributed.init_process_group(
                get_nccl_backend(), timeout=timedelta(seconds=self.config.nccl_timeout)
            )
        return make_mesh(get_device_name(), self.world_size, self.config.actor.fsdp_config.fsdp_size)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(ROWS))
    def update_actor(self, data: DataProto) -> DataProto:
        """Update the policy on this rank's share of the samples.

        Args:
            data: `batch` from the algorithm's `training_batch`, `meta_info["request"]` from its `update_arguments`;
                of stored samples (`utils.sample_store`), their references in a column `stored`, [B] tuples; of
                images that the engine did not generate, `pixels` uint8 [B, S, 3, H, W] and a column `prompts`.

        Returns:
            A proto without rows; `meta_info["metrics"]` has this rank's metrics, with `perf/flops/actor` and, on an
            accelerator whose peak is known, `perf/mfu/actor`. For ranks that share a
            sequence, the driver gets the metrics of the first.

        Raises:
            ray.exceptions.GetTimeoutError: stored samples were not loaded within `rollout.deadline_seconds`.
        """
        batch = self._training_tensors(data)
        began = time.perf_counter()
        metrics = self.actor.update(batch, **data.meta_info["request"])
        seconds = time.perf_counter() - began
        metrics |= utilisation(self.actor.take_flops(), seconds, _device_name(self.actor.device))
        return DataProto(meta_info={"metrics": [metrics]})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(ROWS))
    def update_part(self, data: DataProto) -> DataProto:
        """Accumulate the gradients of some rows of an update; the only rank of the trainer does the rest, too.

        Args:
            data: as of `update_actor`, with `meta_info["part"]`: arguments of `DiffusionActor.update_part`.

        Returns:
            As `update_actor` after the last part, and no metrics before.
        """
        batch = self._training_tensors(data)
        part = data.meta_info["part"]
        use_phase_threads(shared=not part["is_last"])
        began = time.perf_counter()
        metrics = self.actor.update_part(batch, **part, **data.meta_info["request"])
        self._part_seconds = (0.0 if part["is_first"] else self._part_seconds) + time.perf_counter() - began
        if metrics is None:
            return DataProto(meta_info={"metrics": [{}]})
        metrics |= utilisation(self.actor.take_flops(), self._part_seconds, _device_name(self.actor.device))
        return DataProto(meta_info={"metrics": [metrics]})

    def _training_tensors(self, data: DataProto) -> dict[str, Any]:
        batch = dict(data.batch)
        if "stored" in data.non_tensor_batch:
            get = partial(ray.get, timeout=self.rollout_config.deadline_seconds)
            batch = {**sample_store.load(data.non_tensor_batch["stored"], get), **batch}
        if "pixels" in batch:
            batch |= self._encode(data.non_tensor_batch["prompts"], batch.pop("pixels"))
        return batch

    def _encode(self, prompts: Any, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors of images that the engine did not generate; the first call loads the encoders."""
        if self._encoder is None:
            from verl_omni.pipelines.registry import encoder_class

            name = "actor.fsdp_config.mixed_precision.param_dtype"
            dtype = parse_dtype(name, self.config.actor.fsdp_config.mixed_precision.param_dtype)
            length = self.config.rollout.pipeline.max_sequence_length
            self._encoder = encoder_class(self.config.model.architecture)(self.config.model.path, dtype, length)
        encoded: dict[str, torch.Tensor] = self._encoder.encode(list(prompts), pixels, self.actor.device)
        return encoded

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def send_average(self, wanted: bool) -> None:
        """Let the next weight updates send the moving average (`actor.ema_decay`), or again the policy that samples."""
        self._sends_average = wanted

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> dict[str, Any]:
        """Send the policy that samples (`rollout.rollout_adapter`) to the replica, whose workers all confirm it.

        Returns:
            `seconds`, and on the rank that owns the server the worker's reply: `tensors`, `buckets`, `bytes`, `lora`,
            `bound`, `casts`.

        Raises:
            WeightSyncError: a worker of the replica did not apply the weights. The message names replica and version.
        """
        began = time.perf_counter()
        try:
            answer = await self._send_weights(global_steps)
        except WeightSyncError as error:
            replica = self.rollout.replica_rank
            raise type(error)(f"version {global_steps} did not reach replica {replica}: {error.args[0]}") from error
        self._state_casts((answer or {}).get("casts"))
        return {"seconds": time.perf_counter() - began, **(answer or {})}

    def _state_casts(self, casts: dict[str, int] | None) -> None:
        """Log, once, which dtypes the engine keeps other than the one that weights are sent in."""
        if casts and casts != self._casts:
            logger.warning("the engine casts weights sent in rollout.dtype=%s: %s", self.rollout_config.dtype, casts)
            self._casts = casts

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def open_weight_stream(self) -> StreamAddress:
        """Listen, on this node's address, for the replicas of one update, which `send_to_replicas` sends.

        Raises:
            ValueError: other machines can reach the address, and there is no token.
        """
        host = ray.util.get_node_ip_address().strip("[]")
        self._stream = StreamSender(host, network_key(host), network_deadline(self.rollout_config))
        return self._stream.address

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def send_to_replicas(self, version: int, receivers: int) -> dict[int, str] | None:
        """Send the policy that samples to `receivers` workers of standalone replicas.

        Returns:
            On rank 0, why each receiver that did not confirm the update failed; None on the other ranks, which gather.
        """
        config, weights = self._policy_weights()
        bucket = self.rollout_config.checkpoint_engine.update_weights_bucket_megabytes << 20
        try:
            if self.rank != 0:
                return None
            return await self._stream.send(weights, HeaderMessage(version, config), receivers, bucket)
        finally:
            await self._finish(weights)

    def _policy_weights(self) -> tuple[dict[str, Any] | None, Generator[tuple[str, torch.Tensor]]]:
        """The settings of the adapter, None when all weights are trained, and the tensors to send."""
        config = self.actor.peft_config()
        kind: Literal["lora", "full"] = "lora" if config is not None else "full"
        # All weights leave in the engine's dtype; the engine casts an adapter itself, to the dtype of its layers.
        dtype = parse_dtype("rollout.dtype", self.rollout_config.dtype) if kind == "full" else None
        which: PolicyName = "average" if self._sends_average else self.rollout_config.rollout_adapter
        return config, self.actor.weights(kind, which, dtype)

    async def _finish(self, weights: Generator[tuple[str, torch.Tensor]]) -> None:
        # Gathering a sharded weight is a collective: after a failure on this rank, the others still wait for it.
        if self.world_size > 1:
            await asyncio.to_thread(collections.deque, weights, 0)
        weights.close()  # offloads now; garbage collection might do it in the middle of an update

    async def _send_weights(self, global_steps: int | None) -> dict[str, Any] | None:
        sleeping = self.rollout_config.free_cache_engine
        config, weights = self._policy_weights()
        try:
            if sleeping:
                await self.rollout.resume(tags=["weights"])
            answer = await self.rollout.update_weights(
                weights, peft_config=config, base_sync_done=config is not None, global_steps=global_steps
            )
        finally:
            await self._finish(weights)
        if sleeping:
            await self.rollout.resume(tags=["kv_cache"])
        return answer  # type: ignore[no-any-return]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: str) -> None:
        """Write the training state to `folder`/state and the adapter, in diffusers' format, to `folder`/lora."""
        self.actor.save(Path(folder) / "state")
        self.actor.save_adapter(Path(folder) / "lora")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_adapter(self, folder: str) -> None:
        """Write the adapter alone, as `save_checkpoint` does, to `folder`/lora."""
        self.actor.save_adapter(Path(folder) / "lora")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_checkpoint(self, folder: str) -> None:
        """Copy what `save_checkpoint` writes to CPU memory, and write it in a thread of this rank.

        Raises:
            RuntimeError: `finish_checkpoint` has not confirmed the last one.
        """
        self._writing.start(self.actor.stage(Path(folder)))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_checkpoint(self, wait_s: float) -> bool:
        """Whether the write that `start_checkpoint` began has ended, after waiting for it up to `wait_s` seconds.

        Raises:
            Exception: the write failed.
        """
        return self._writing.finish(wait_s=wait_s)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: str) -> None:
        """Read the training state that `save_checkpoint` wrote."""
        self.actor.load(Path(folder) / "state")


def _device_name(device: torch.device) -> str:
    """The name that the driver of an accelerator reports; `cpu` of the CPU."""
    return "cpu" if device.type == "cpu" else str(torch.get_device_module(device.type).get_device_name(device))


def _device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    from verl.utils.device import get_device_id, get_device_name

    name = get_device_name()
    return torch.device(name) if name == "cpu" else torch.device(name, get_device_id())


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
