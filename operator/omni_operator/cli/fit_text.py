"""PURE: the output of `drl fit` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omni_operator.api.reserved import owner_of

GIB, MIB = 1 << 30, 1 << 20
NAME = 24  # width of the first column


def render(found: Mapping[str, Any], hosts: int, devices: int) -> str:
    """The whole text.

    Args:
        found: what `drl fit --json` prints.
        hosts, devices: number of hosts, and of devices on each.
    """
    lines = [
        f"{found['architecture']}, {found['parameters'] / 1e9:.3g} billion parameters, "
        f"{found['trained_parameters'] / 1e6:.4g} million of them trained"
    ]
    if found["device"]:
        lines += ["", *_table(f"each of {hosts * devices} devices", found["device"])]
    lines += ["", *_table("host of the driver" if hosts > 1 else "host", found["host"])]
    lines += [
        "",
        "moved in one step",
        *(f"  {name:{NAME + 8}}{_size(size):>10}" for name, size in found["moved"].items()),
    ]
    return "\n".join([*lines, "", *_verdict(found)])


def _table(title: str, phases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Parts in rows, phases in columns."""
    width = max(12, *(len(phase["name"]) + 2 for phase in phases))
    yield f"{title + ' (GiB)':{NAME + 2}}" + "".join(f"{phase['name']:>{width}}" for phase in phases)
    for part in dict.fromkeys(part for phase in phases for part in phase["parts"]):
        cells = (phase["parts"].get(part) for phase in phases)
        yield f"  {part:{NAME}}" + "".join(f"{'' if size is None else _gib(size):>{width}}" for size in cells)
    yield f"  {'total':{NAME}}" + "".join(f"{_gib(phase['bytes']):>{width}}" for phase in phases)


def _verdict(found: Mapping[str, Any]) -> Iterator[str]:
    peak, capacity, target = found["peak"], found["capacity"], found["target"]
    if capacity is None:
        yield f"the memory of {target} is unknown: needs {_gib(peak)} GiB and {found['reserve']:.0%} of the device"
    else:
        verb = "fits" if found["fits"] else "does not fit"
        yield (
            f"{found['job']} {verb} on {target}: {_gib(peak)} of {_gib(capacity)} GiB at the peak, of which "
            f"{found['reserve']:.0%} should stay free"
        )
    if found["host_fits"] is False:
        needed = max(phase["bytes"] for phase in found["host"])
        yield (
            f"the host does not fit: {_gib(needed)} GiB, and the pod's limit is {_gib(found['host_capacity'])} GiB; "
            "raise spec.trainer.resources.limits.memory"
        )
    for field in found["not_estimated"]:
        yield f"{field} is not part of this estimate, and shares the accelerators with what is"
    yield from _advice(found)


def _advice(found: Mapping[str, Any]) -> Iterator[str]:
    if found["fits"] is not False:
        return
    advice = found["advice"]
    if not advice:
        yield "no setting known to drl fit makes it smaller"
        return
    yield "change, one after the other:"
    for each in advice:
        reached = f"{_gib(each['peak'])} GiB{', fits' if each['fits'] else ''}"
        yield f"  {change_text(each['setting'], each['value']):64} {reached} ({each['costs']})"
    if not advice[-1]["fits"]:
        yield "even then it does not fit"


def change_text(setting: str, value: Any) -> str:
    """A setting of the trainer as the user of a job writes it: its field, or an override."""
    shown = str(value).lower() if isinstance(value, bool) else value
    owner = owner_of(setting)
    if owner == "spec.model.lora":
        return f"spec.model.lora.enabled: true, rank: {shown}"
    return f"{owner}: {shown}" if owner else f"spec.algorithm.overrides: [{setting}={shown}]"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _size(size: int) -> str:
    return f"{_gib(size)} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
