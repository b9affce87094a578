"""PURE: Kubernetes quantities of memory and CPU."""

import math
import re
from fractions import Fraction

_FORM = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")
_UNITS: dict[str | None, Fraction] = {
    None: Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTP", 1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTP", 1)},
}


def value(quantity: str) -> Fraction:
    """Parse a quantity: bytes or CPUs.

    Raises:
        ValueError: `quantity` is malformed.
    """
    match = _FORM.match(quantity)
    if match is None:
        raise ValueError(f"not a quantity: {quantity!r}")
    return Fraction(match[1]) * _UNITS[match[2]]


def whole(quantity: str) -> int:
    """`value`, rounded up."""
    return math.ceil(value(quantity))


def add(one: str, other: str) -> str:
    """Add two amounts of memory; the sum is in the largest binary unit that divides it."""
    total = whole(one) + whole(other)
    for power, unit in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if total and total % 1024**power == 0:
            return f"{total // 1024**power}{unit}"
    return str(total)
