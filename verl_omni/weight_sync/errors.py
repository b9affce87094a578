"""Errors of a weight update.

WeightSyncError
├── IncompleteUpdate       names, shapes, dtypes, digests or values are not the expected ones
├── UnsupportedAdapter     the adapter uses a feature of peft that the engine would silently ignore
├── BindingIncomplete      the engine has no matching layer for some modules of the adapter
├── PartialWeights         full weights were written in part: the worker refuses to serve
├── PeerFailed             the other end reported a failure
├── PeerDisconnected       the other end closed the connection without reporting a failure
├── TransferCancelled      this end was told to stop
├── SharedMemoryFull       shared memory is full
├── TooFewReplicas         too few standalone replicas have the weights
└── DeadlineExceeded       the other end did not reply in time
"""

import re
from collections.abc import Iterable

from verl_omni.utils.root_cause import describe_error


class WeightSyncError(RuntimeError):
    """A weight update did not take effect. The engine keeps the old weights unless the message says otherwise.

    The text starts with the class, `[IncompleteUpdate] …`: vLLM-Omni passes a worker's exception on as text, and
    `parse_error` restores the class on the other side.
    """

    def __str__(self) -> str:
        return f"[{type(self).__name__}] {super().__str__()}"


class IncompleteUpdate(WeightSyncError):
    """The received tensors are not the expected ones."""


class UnsupportedAdapter(WeightSyncError):
    """The adapter's settings need a feature that the engine does not have."""


class BindingIncomplete(WeightSyncError):
    """Some modules of an adapter have no matching layer in the engine."""


class PartialWeights(WeightSyncError):
    """A full update failed after some weights were written; only a complete full update repairs the worker."""


class PeerFailed(WeightSyncError):
    """The other end of the transfer failed and reported why."""


class PeerDisconnected(WeightSyncError):
    """The other end of the transfer disconnected before the end, as a killed process does."""


class TransferCancelled(WeightSyncError):
    """The transfer was stopped by this end."""


class SharedMemoryFull(WeightSyncError):
    """Shared memory has no room for one tensor."""


class TooFewReplicas(WeightSyncError):
    """Fewer standalone replicas than a run needs have the weights, and no others joined in time."""


class DeadlineExceeded(WeightSyncError):
    """The other end of the transfer did not reply in time."""


def error_text(error: BaseException) -> str:
    """An error as text with its class. Characters that UTF-8 cannot encode, as in some file names, are escaped."""
    message = str(error) if isinstance(error, WeightSyncError) else f"{type(error).__name__}: {error}"
    return message.encode(errors="backslashreplace").decode()


def summarize_names(names: Iterable[str]) -> str:
    """Up to five names, sorted, and the number of all."""
    ordered = sorted(names)
    return f"{', '.join(ordered[:5])}{' …' if len(ordered) > 5 else ''} ({len(ordered)})"


def parse_error(message: str) -> WeightSyncError:
    """The error whose text is contained in `message`; a plain `WeightSyncError` if there is none."""
    kinds = {kind.__name__: kind for kind in WeightSyncError.__subclasses__()}
    if match := re.search(rf"\[({'|'.join(kinds)})\] (.*)", message, re.DOTALL):
        return kinds[match[1]](match[2])
    return WeightSyncError(message)


def is_loss_of_replicas(error: BaseException) -> bool:
    """Whether an error is, or was in the process that it came from, a `TooFewReplicas`."""
    return isinstance(parse_error(describe_error(error)), TooFewReplicas)
