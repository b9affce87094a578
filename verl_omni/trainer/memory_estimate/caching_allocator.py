"""PURE: `CachingAllocator`: memory that torch's allocator of a CUDA device holds, for a sequence of allocations.

It follows the rules of `c10/cuda/CUDACachingAllocator.cpp` with its default settings: sizes are rounded, the smallest
free block that is large enough is taken and divided, neighbours that are free become one block, and memory that was
reserved once stays reserved. So a process holds more than its tensors ever took at one time.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUNDING = 512
MIB = 1 << 20
SMALL = MIB  # allocations up to this have segments of their own, of 2 MiB
SMALL_SEGMENT = 2 * MIB
MEDIUM_SEGMENT = 20 * MIB
LARGEST_MEDIUM = 10 * MIB
LARGE_ROUNDING = 2 * MIB


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, with its neighbours."""

    size: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None


class CachingAllocator:
    """Counts reserved memory.

    Attributes:
        segments: bytes of each part of the device that was reserved. free: blocks that are not in use.
    """

    def __init__(self) -> None:
        self.segments: list[int] = []
        self.free: set[Block] = set()

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(self.segments)

    def allocate(self, size: int) -> Block:
        """A block of at least `size` bytes."""
        size = -(-max(size, 1) // ROUNDING) * ROUNDING
        small = size <= SMALL
        fitting = (block for block in self.free if block.small == small and block.size >= size)
        block = min(fitting, key=lambda each: each.size, default=None)
        if block is None:
            block = Block(_segment(size), small)
            self.segments.append(block.size)
        self.free.discard(block)
        block.free = False
        remainder = block.size - size
        if remainder >= ROUNDING if small else remainder > SMALL:
            self._divide(block, size)
        return block

    def release(self, block: Block) -> None:
        """Free a block for later allocations."""
        block.free = True
        if block.before is not None and block.before.free:
            self.free.discard(block.before)
            block = _joined(block.before, block)
        if block.after is not None and block.after.free:
            self.free.discard(block.after)
            block = _joined(block, block.after)
        self.free.add(block)

    def _divide(self, block: Block, size: int) -> None:
        remainder = Block(block.size - size, block.small, free=True, before=block, after=block.after)
        if block.after is not None:
            block.after.before = remainder
        block.size = size
        block.after = remainder
        self.free.add(remainder)


def _segment(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return MEDIUM_SEGMENT if size < LARGEST_MEDIUM else -(-size // LARGE_ROUNDING) * LARGE_ROUNDING


def _joined(first: Block, second: Block) -> Block:
    first.size = first.size + second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    return first
