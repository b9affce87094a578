"""Settings of a weight update over the network, which both ends read."""

import os

from verl_omni.weight_sync.handshake import TOKEN_VARIABLE, token_key
from verl_omni.weight_sync.ipc import UPDATE_DEADLINE_SECONDS
from verl_omni.workers.config import DiffusionRolloutConfig


def network_deadline(config: DiffusionRolloutConfig) -> float:
    """Seconds that each end waits for the other (`checkpoint_engine.engine_kwargs.omni_tcp.deadline_seconds`)."""
    options = config.checkpoint_engine.engine_kwargs.get("omni_tcp") or {}
    return float(options.get("deadline_seconds", UPDATE_DEADLINE_SECONDS))


def network_key(host: str) -> bytes:
    """Key of the handshake, from this process's environment. Raises as `token_key`."""
    return token_key(os.environ.get(TOKEN_VARIABLE), host)
