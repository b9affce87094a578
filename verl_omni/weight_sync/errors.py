"""What can go wrong in a weight update.

WeightSyncError
├── IncompleteUpdate     names, shapes, dtypes, digests or values are not what they must be
├── UnsupportedAdapter   the adapter uses a feature of peft that the engine would drop in silence
├── BindingIncomplete    an adapter was sent that the engine cannot attach everywhere
├── TornWeights          full weights were written in part: the worker refuses to serve
├── PeerFailed           the other end said that it failed
├── PeerGone             the other end left without a word
├── CalledOff            this end was told to stop
├── NoRoom               shared memory is full
└── DeadlineExceeded     the other end did not answer in time
"""

from __future__ import annotations

import re


class WeightSyncError(RuntimeError):
    """A weight update did not take effect; what served before goes on serving unless the message says otherwise.

    Its text begins with its class, `[IncompleteUpdate] …`: vLLM-Omni hands a worker's exception on as text, and
    `from_text` finds the class again at the other side.
    """

    def __str__(self) -> str:
        return f"[{type(self).__name__}] {super().__str__()}"


class IncompleteUpdate(WeightSyncError):
    """The tensors that arrived are not the ones that were meant."""


class UnsupportedAdapter(WeightSyncError):
    """The adapter's settings ask for something that the engine would leave out."""


class BindingIncomplete(WeightSyncError):
    """Some tensors of an adapter found no layer in the engine."""


class TornWeights(WeightSyncError):
    """A full update broke off after some weights were written; only a whole full update mends it."""


class PeerFailed(WeightSyncError):
    """The other end of the transfer failed, and said why."""


class PeerGone(WeightSyncError):
    """The other end of the transfer ended in the middle of it, as a process does that is killed."""


class CalledOff(WeightSyncError):
    """The transfer was stopped from this side."""


class NoRoom(WeightSyncError):
    """Shared memory cannot hold what one tensor needs."""


class DeadlineExceeded(WeightSyncError):
    """The other end of the transfer did not answer in time."""


def text(error: BaseException) -> str:
    """An error in one line, with its class; characters that UTF-8 does not have, as of a file's name, are escaped."""
    words = str(error) if isinstance(error, WeightSyncError) else f"{type(error).__name__}: {error}"
    return words.encode(errors="backslashreplace").decode()


def from_text(words: str) -> WeightSyncError:
    """The error whose text is somewhere in `words`; a plain `WeightSyncError` where none is."""
    kinds = {kind.__name__: kind for kind in WeightSyncError.__subclasses__()}
    if found := re.search(rf"\[({'|'.join(kinds)})\] (.*)", words, re.DOTALL):
        return kinds[found[1]](found[2])
    return WeightSyncError(words)
