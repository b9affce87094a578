"""The Ray worker of a standalone replica, one for each accelerator: it receives weights for the engine."""

import asyncio
import contextlib
from typing import Any

from typing_extensions import override
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

from verl_omni.weight_sync.errors import IncompleteUpdate, error_text
from verl_omni.weight_sync.messages import StreamAddress
from verl_omni.weight_sync.tcp_receiver import StreamReceiver
from verl_omni.workers.config import DiffusionRolloutConfig
from verl_omni.workers.rollout.network_settings import network_deadline, network_key
from verl_omni.workers.rollout.vllm_rollout.training_worker.server_adapter import ServerAdapter


class RelayAdapter(ServerAdapter):
    """The engine waits for weights that may be late by the deadline of their way over the network."""

    @override
    def _deadline(self) -> float:
        return super()._deadline() + network_deadline(self.config)


class ReplicaWorker(Worker):  # type: ignore[misc]
    """Passes weights from the trainer's node on to the engine on its own node, over the engine's IPC."""

    def __init__(self, rollout_config: DiffusionRolloutConfig, model_config: Any, replica_rank: int) -> None:
        super().__init__()
        self._config = rollout_config
        self._engine = RelayAdapter(rollout_config, model_config, device_mesh=None, replica_rank=replica_rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def ready(self) -> None:
        """Answer, so that the driver need not wait for a connection of a worker that is gone."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def receive_weights(self, address: StreamAddress, receiver: int, version: int) -> None:
        """Receive one update; the replica publishes its version once its engine has confirmed all tensors.

        Args:
            receiver: number of this worker in the update.

        Raises:
            WeightSyncError: the update did not take effect here; the trainer is told why.
        """
        incoming = StreamReceiver(address, receiver, network_key(address.host), network_deadline(self._config))
        await asyncio.to_thread(incoming.connect)
        with contextlib.closing(incoming):
            try:
                if incoming.header.version != version:
                    raise IncompleteUpdate(f"the trainer sends version {incoming.header.version}, not {version}")
                config = incoming.header.peft_config
                await self._engine.update_weights(
                    incoming.weights(), peft_config=config, base_sync_done=config is not None, global_steps=version
                )
            except Exception as error:
                await asyncio.to_thread(incoming.refuse, error_text(error))
                raise
            await asyncio.to_thread(incoming.confirm)
