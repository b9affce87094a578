"""The memory between the two ends of an update: a shared-memory segment, or device memory opened through IPC."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import secrets
from multiprocessing import shared_memory

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate, NoRoom
from verl_omni.weight_sync.messages import Begin

SEGMENT_PREFIX = "verl_omni_weights_"
SHARED_MEMORY = "/dev/shm"


class Outgoing:
    """The sender's buffer. It is replaced to grow, and removed on `close`.

    Args:
        device: where it lives for device IPC; None for shared memory.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self.tensor = torch.empty(0, dtype=torch.uint8)
        self._segment: shared_memory.SharedMemory | None = None

    def replace(self, needed: int, wanted: int) -> Begin:
        """Drop the buffer and take one of `wanted` bytes, or fewer where memory is short, but at least `needed`.

        Raises:
            NoRoom: shared memory cannot hold `needed` bytes.
        """
        self.close()
        if self.device is not None:
            from torch.multiprocessing.reductions import reduce_tensor

            self.tensor = torch.empty(wanted, dtype=torch.uint8, device=self.device)
            return Begin(wanted, device_handle=pickle.dumps(reduce_tensor(self.tensor)))
        size = max(needed, min(wanted, _free_shared_memory() // 2))
        # SharedMemory, because its resource tracker removes the segment even if this process is killed.
        self._segment = shared_memory.SharedMemory(f"{SEGMENT_PREFIX}{secrets.token_hex(8)}", create=True, size=size)
        self._segment.close()
        self.tensor = _mapped(self._segment.name, size, reserve=True)
        return Begin(size, segment=self._segment.name)

    def close(self) -> None:
        """Remove the buffer; safe to repeat."""
        self.tensor = torch.empty(0, dtype=torch.uint8)
        release(self.device)
        if self._segment is not None:
            segment, self._segment = self._segment, None
            segment.unlink()


def opened(begin: Begin, device: torch.device) -> Tensor:
    """The receiver's view of the sender's buffer, uint8 [size]; dropping it closes it.

    Raises:
        IncompleteUpdate: the message names no buffer.
    """
    if begin.segment is not None:
        return _mapped(begin.segment, begin.size, reserve=False)
    if begin.device_handle is None:
        raise IncompleteUpdate("the trainer named no buffer")
    rebuild, arguments = pickle.loads(begin.device_handle)
    place = list(arguments)
    place[6] = device.index  # the two processes may count devices differently
    return rebuild(*place)


def settle(device: torch.device | None) -> None:
    """Wait for copies that the device still has to do: the other end will read or overwrite the buffer next."""
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


def release(device: torch.device | None) -> None:
    """Give back what device IPC keeps for later: a buffer that nobody has any more, and its count in shared memory."""
    if device is not None and device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "ipc_collect"):  # not every version of torch_npu has it
            module.ipc_collect()
        module.empty_cache()


def _free_shared_memory() -> int:
    free = os.statvfs(SHARED_MEMORY)
    return free.f_bavail * free.f_frsize


def _mapped(segment: str, size: int, *, reserve: bool) -> Tensor:
    """A segment as a tensor that unmaps it when dropped; SharedMemory.close() fails while any view is alive.

    Args:
        reserve: take the pages now. Otherwise a full /dev/shm (64 MiB in a container, unless told otherwise) kills
            the process with SIGBUS at the first write to a page that is not there.
    """
    descriptor = os.open(os.path.join(SHARED_MEMORY, segment), os.O_RDWR)
    try:
        if reserve:
            os.posix_fallocate(descriptor, 0, size)
        # All pages at once: a fault for each one costs as much as copying it.
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return torch.frombuffer(mapped, dtype=torch.uint8)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise NoRoom(
            f"{SHARED_MEMORY} cannot hold the {size} bytes that one tensor needs: enlarge it "
            "(a memory-backed volume on Kubernetes, --shm-size with a container engine)"
        ) from error
    finally:
        os.close(descriptor)
