"""PURE: digest of a tensor's bytes, to detect transfer errors.

It detects faults (a bucket overwritten too early, tensors swapped, a wrong offset), not tampering. Both ends read the
same buffer, so both take the same branch; shape and dtype are compared separately.
"""

from __future__ import annotations

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

WORD = 8  # bytes
CHUNK = 1 << 22  # words at a time: limits temporary tensors on a device to 3 x 32 MiB
# Odd multipliers: 2^64 divided by the golden ratio, and the one of splitmix64.
_WORD_FACTOR = -7046029254386353131
_POSITION_FACTOR = -4658895280553007687


def compute_digest(flat: Tensor) -> int:
    """Digest of bytes, uint8 [n]: XXH3 (64 bits) in CPU memory; a 64-bit sum on an accelerator, computed there."""
    return xxh3_64_intdigest(flat.numpy()) if flat.device.type == "cpu" else device_digest(flat)


def device_digest(flat: Tensor) -> int:
    """Sum over 8-byte words of `mix(word) * odd(position)` modulo 2^64; a changed or moved word changes it.

    Args:
        flat: uint8 [n], aligned to 8 bytes. Integer addition makes the result independent of the order of summation.
    """
    whole = flat.numel() // WORD * WORD
    parts = [flat[:whole].view(torch.int64), flat[whole:].to(torch.int64)]
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    position = 0
    for part in parts:
        for words in part.split(CHUNK):
            mixed = words * _WORD_FACTOR
            mixed ^= mixed >> 29
            end = position + words.numel()
            positions = torch.arange(position, end, device=flat.device, dtype=torch.int64)
            total += (mixed * (positions.mul_(2).add_(1).mul_(_POSITION_FACTOR))).sum()
            position = end
    return int(total)
