"""The buffer of a weight transfer: a shared-memory segment, or device memory that is opened through IPC."""

import errno
import mmap
import os
import pickle
import secrets
from multiprocessing import shared_memory

import torch
from torch import Tensor

from verl_omni.weight_sync.errors import IncompleteUpdate, SharedMemoryFull
from verl_omni.weight_sync.messages import BufferMessage

SEGMENT_PREFIX = "verl_omni_weights_"
SHARED_MEMORY = "/dev/shm"


class SendBuffer:
    """The sender's buffer. A larger buffer replaces it, and `close` removes it.

    Args:
        device: location of the buffer for device IPC; None for shared memory.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self.tensor = torch.empty(0, dtype=torch.uint8)
        self._segment: shared_memory.SharedMemory | None = None

    def replace(self, needed: int, preferred: int) -> BufferMessage:
        """Replace the buffer by one of `preferred` bytes, or fewer if memory is short, but at least `needed`.

        Raises:
            SharedMemoryFull: shared memory cannot hold `needed` bytes.
        """
        self.close()
        if self.device is not None:
            from torch.multiprocessing.reductions import reduce_tensor

            self.tensor = torch.empty(preferred, dtype=torch.uint8, device=self.device)
            return BufferMessage(preferred, device_handle=pickle.dumps(reduce_tensor(self.tensor)))
        size = max(needed, min(preferred, _free_shared_memory() // 2))
        # Python's resource tracker removes a SharedMemory segment even if this process is killed.
        self._segment = shared_memory.SharedMemory(f"{SEGMENT_PREFIX}{secrets.token_hex(8)}", create=True, size=size)
        self._segment.close()
        self.tensor = _map_segment(self._segment.name, size, reserve=True)
        return BufferMessage(size, segment=self._segment.name)

    def close(self) -> None:
        """Remove the buffer; safe to repeat."""
        self.tensor = torch.empty(0, dtype=torch.uint8)
        release_ipc_memory(self.device)
        if self._segment is not None:
            segment = self._segment
            self._segment = None
            segment.unlink()


def open_buffer(message: BufferMessage, device: torch.device) -> Tensor:
    """Open the sender's buffer, uint8 [size]; dropping the tensor closes it.

    Raises:
        IncompleteUpdate: the message names no buffer.
    """
    if message.segment is not None:
        return _map_segment(message.segment, message.size, reserve=False)
    if message.device_handle is None:
        raise IncompleteUpdate("malformed message of the trainer: it names no buffer")
    rebuild, arguments = pickle.loads(message.device_handle)
    local_arguments = list(arguments)
    local_arguments[6] = device.index  # the index of a device may differ between the two processes
    return rebuild(*local_arguments)


def synchronize(device: torch.device | None) -> None:
    """Wait for pending copies of the device: the other end reads or overwrites the buffer next."""
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


def release_ipc_memory(device: torch.device | None) -> None:
    """Free what device IPC keeps: buffers that are no longer in use, and their reference counts in shared memory."""
    if device is not None and device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "ipc_collect"):  # not every version of torch_npu has it
            module.ipc_collect()
        module.empty_cache()


def _free_shared_memory() -> int:
    free = os.statvfs(SHARED_MEMORY)
    return free.f_bavail * free.f_frsize


def _map_segment(segment: str, size: int, *, reserve: bool) -> Tensor:
    """Map a segment as a tensor, which unmaps it when dropped; SharedMemory.close() fails while any view is alive.

    Args:
        reserve: allocate the pages now. Otherwise a full /dev/shm (64 MiB in a container by default) kills the
            process with SIGBUS at the first write to a page that is not there.
    """
    descriptor = os.open(os.path.join(SHARED_MEMORY, segment), os.O_RDWR)
    try:
        if reserve:
            os.posix_fallocate(descriptor, 0, size)
        # Map all pages at once: a page fault costs as much as copying the page.
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return torch.frombuffer(mapped, dtype=torch.uint8)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise SharedMemoryFull(
            f"{SHARED_MEMORY} is full: one tensor needs {size} bytes. Enlarge it "
            "(a memory-backed volume on Kubernetes, --shm-size with a container engine)"
        ) from error
    finally:
        os.close(descriptor)
