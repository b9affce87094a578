"""What can go wrong in a weight update.

WeightSyncError
├── IncompleteUpdate     names, shapes, dtypes, digests or values are not what they must be
├── BindingIncomplete    an adapter was sent that the engine cannot attach everywhere
├── PeerFailed           the other end said that it failed
└── DeadlineExceeded     the other end did not answer in time
"""

from __future__ import annotations


class WeightSyncError(RuntimeError):
    """A weight update did not take effect; what served before goes on serving unless the message says otherwise."""


class IncompleteUpdate(WeightSyncError):
    """The tensors that arrived are not the ones that were meant."""


class BindingIncomplete(WeightSyncError):
    """Some tensors of an adapter found no layer in the engine."""


class PeerFailed(WeightSyncError):
    """The other end of the transfer failed, and said why."""


class DeadlineExceeded(WeightSyncError):
    """The other end of the transfer did not answer in time."""
