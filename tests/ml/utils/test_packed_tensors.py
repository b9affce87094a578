"""Tensors in one buffer: what comes out is what went in, bit by bit, and what rows share is in it once."""

import pickle

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.utils.packed_tensors import SHARED_BYTES, pack

DTYPES = (torch.uint8, torch.bool, torch.int64, torch.float32, torch.bfloat16)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.tuples(st.sampled_from(DTYPES), SHAPES)), max_size=4))
@settings(deadline=None, max_examples=60)
def test_rows_come_out_as_they_went_in(shapes: list[dict[str, tuple[torch.dtype, list[int]]]]) -> None:
    rows = [{name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in row.items()} for row in shapes]
    unpacked = pickle.loads(pickle.dumps(pack(rows))).rows()
    assert [row.keys() for row in unpacked] == [row.keys() for row in rows]
    for row, unpacked_row in zip(rows, unpacked, strict=True):
        for name, tensor in row.items():
            assert unpacked_row[name].dtype == tensor.dtype and torch.equal(unpacked_row[name], tensor)


def test_large_tensors_with_the_same_bytes_are_one() -> None:
    embeds = torch.randn(2, SHARED_BYTES)
    zeros = torch.zeros(SHARED_BYTES)
    rows = [{"embeds": embeds[0]}, {"embeds": embeds[1]}, {"embeds": embeds[0].clone()}, {"embeds": zeros}]
    rows += [{"embeds": -zeros}, {"embeds": torch.full((SHARED_BYTES,), torch.nan)}]
    packed = pack(rows)
    assert packed.buffer.nbytes == 5 * 4 * SHARED_BYTES, "-0 is not 0"
    unpacked = [row["embeds"] for row in packed.rows()]
    assert unpacked[0] is unpacked[2] and unpacked[3] is not unpacked[4]
    assert unpacked[4].signbit().all() and unpacked[5].isnan().all()


def test_unpacked_tensors_may_be_changed_and_pickled_alone() -> None:
    """Each has its own memory: a view of the buffer would be pickled with all of it."""
    packed = pack([{"pixels": torch.full((300,), row, dtype=torch.uint8)} for row in range(50)])
    packed.buffer.flags.writeable = False  # like the buffer of an object in Ray's store
    pixels = packed.rows()[7]["pixels"]
    pixels += 1
    assert packed.rows()[7]["pixels"].unique().tolist() == [7]
    assert len(pickle.dumps(pixels)) < 1000
