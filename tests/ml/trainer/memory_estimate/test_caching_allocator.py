"""The model of torch's CUDA allocator: the sizes of its segments, and that it loses no byte of them."""

from hypothesis import given
from hypothesis import strategies as st

from verl_omni.trainer.memory_estimate.caching_allocator import MIB, CachingAllocator


def reserved(*sizes: int) -> int:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved


def test_segments_have_the_sizes_of_torchs_allocator() -> None:
    assert reserved(1) == reserved(MIB) == 2 * MIB
    assert reserved(MIB, MIB) == 2 * MIB, "two small blocks of one segment"
    assert reserved(MIB + 1) == reserved(9 * MIB, 9 * MIB) == 20 * MIB
    assert (reserved(10 * MIB), reserved(11 * MIB)) == (10 * MIB, 12 * MIB)


def test_freed_memory_is_used_again_and_stays_reserved() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(100 * MIB) for _ in range(2)]
    for block in blocks:
        allocator.release(block)
    first = allocator.allocate(60 * MIB)
    second = allocator.allocate(40 * MIB)
    assert allocator.reserved == 200 * MIB and first.after is second, "a block is divided, and the smallest rest taken"
    allocator.allocate(150 * MIB)
    assert allocator.reserved == 350 * MIB, "no free block is large enough, although 100 MiB are free"
    allocator.release(first)
    allocator.release(second)
    allocator.allocate(100 * MIB)
    allocator.allocate(100 * MIB)
    assert allocator.reserved == 350 * MIB, "neighbours that are free are one block again"


@given(st.lists(st.tuples(st.integers(0, 30 * MIB), st.booleans()), max_size=60))
def test_what_is_freed_is_as_much_as_was_reserved(events: list[tuple[int, bool]]) -> None:
    allocator = CachingAllocator()
    blocks = []
    live = peak = 0
    for size, frees in events:
        blocks.append((allocator.allocate(size), size))
        assert blocks[-1][0].size >= size
        live += size
        peak = max(peak, live)
        if frees:
            block, size = blocks.pop(len(blocks) // 2)
            allocator.release(block)
            live -= size
    assert allocator.reserved >= peak
    for block, _ in blocks:
        allocator.release(block)
    free = [block for block in allocator.free if block.before is block.after is None]
    assert sum(block.size for block in free) == allocator.reserved
    assert len(free) == len(allocator.free), "each segment is one block"
