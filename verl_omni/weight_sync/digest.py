"""PURE: a number that says whether bytes arrived as they were sent.

It finds faults (a bucket overwritten too early, tensors mixed up, a wrong offset), not malice. Both ends read the
same buffer, so both take the same branch; shape and dtype are compared apart.
"""

from __future__ import annotations

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

WORD = 8  # bytes
CHUNK = 1 << 22  # words at a time: bounds the temporaries on a device to 3 x 32 MiB
_SPREAD, _PLACE = -7046029254386353131, -4658895280553007687  # odd; 2^64 over the golden ratio, and splitmix64's


def digest(flat: Tensor) -> int:
    """Of bytes, uint8 [n]: XXH3 (64 bits) on a host; on a device a 64-bit sum, computed where they lie."""
    return xxh3_64_intdigest(flat.numpy()) if flat.device.type == "cpu" else mixed_sum(flat)


def mixed_sum(flat: Tensor) -> int:
    """Sum over 8-byte words of `mix(word) * odd(place)` modulo 2^64, so that a changed or moved word shows.

    Args:
        flat: uint8 [n], aligned to 8 bytes. Integer addition makes the result independent of the order of summation.
    """
    whole = flat.numel() // WORD * WORD
    parts = [flat[:whole].view(torch.int64), flat[whole:].to(torch.int64)]
    total, place = torch.zeros((), dtype=torch.int64, device=flat.device), 0
    for part in parts:
        for words in part.split(CHUNK):
            mixed = words * _SPREAD
            mixed ^= mixed >> 29
            places = torch.arange(place, place + words.numel(), device=flat.device, dtype=torch.int64)
            total += (mixed * (places.mul_(2).add_(1).mul_(_PLACE))).sum()
            place += words.numel()
    return int(total)
