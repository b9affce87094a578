"""PURE: the output of `drl fit` as text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_omni.settings_schema.declarations import field_of

TIB = 1 << 40
GIB = 1 << 30
MIB = 1 << 20
NAME = 24  # width of the first column


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of a pool: number of pods, and number of devices in each."""

    hosts: int
    devices: int


def render(found: Mapping[str, Any], trainer: Pods, rollout: Pods) -> str:
    """The output of `drl fit` as text.

    Args:
        found: what `drl fit --json` prints.
        trainer: the trainer's pods.
        rollout: the rollout pods, used only if `found` has pools.
    """
    lines = [
        f"{found['architecture']}, {_count(found['parameters'])} parameters, "
        f"{_count(found['trained_parameters'])} of them trained"
    ]
    if pools := found.get("pools"):
        lines += _tables(pools["trainer"], trainer, "trainer: ", "host of the driver")
        lines += _tables(pools["rollout"], rollout, "rollout: ", "host")
    else:
        lines += _tables(found, trainer, "", "host of the driver")
    moved = (f"  {name:{NAME + 8}}{_size(size):>10}" for name, size in found["moved"].items())
    return "\n".join([*lines, "", "moved in one step", *moved, "", *_verdicts(found, trainer)])


def _tables(found: Mapping[str, Any], pods: Pods, pool: str, host: str) -> Iterator[str]:
    """Phases of the accelerators and of a host; `host` is the name of one of several."""
    if found["device"]:
        count = pods.hosts * pods.devices
        title = f"{pool}each of {count} accelerators" if count > 1 else f"{pool}the accelerator"
        yield from ("", *_table(title, found["device"]))
    yield from ("", *_table(pool + (host if pods.hosts > 1 else "host"), found["host"]))


def _table(title: str, phases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Parts in rows, phases in columns."""
    width = max(12, *(len(phase["name"]) + 2 for phase in phases))
    name = max(NAME, len(f"{title} (GiB)") - 2)
    yield f"{title + ' (GiB)':{name + 2}}" + "".join(f"{phase['name']:>{width}}" for phase in phases)
    for part in dict.fromkeys(part for phase in phases for part in phase["parts"]):
        cells = (phase["parts"].get(part) for phase in phases)
        yield f"  {part:{name}}" + "".join(f"{'' if size is None else _gib(size):>{width}}" for size in cells)
    yield f"  {'total':{name}}" + "".join(f"{_gib(phase['bytes']):>{width}}" for phase in phases)


def _verdicts(found: Mapping[str, Any], trainer: Pods) -> Iterator[str]:
    pools = found.get("pools", {})
    job = found["job"]
    reserve = found["reserve"]
    if "peak" in found:
        yield from _verdict(found, job, reserve, _on_one_machine(found, trainer))
        yield from _advice(found)
    for name, pool in pools.items():
        if "peak" in pool:
            yield from _verdict(pool, f"{job}: the {name} pool", reserve)
            yield from _advice(pool)
    for name, pool in pools.items() or [("trainer", found)]:
        if pool["host_fits"] is False:
            needed = max(phase["bytes"] for phase in pool["host"])
            yield (
                f"the {f'{name} ' if pools else ''}host does not fit: {_gib(needed)} GiB, and the pod's limit is "
                f"{_gib(pool['host_capacity'])} GiB; raise spec.{name}.resources.limits.memory"
            )
    for field in found["not_estimated"]:
        yield f"not estimated: {field}, which uses the same accelerators"


def _on_one_machine(found: Mapping[str, Any], trainer: Pods) -> str:
    """What one machine has of a job without accelerators; empty if that is one host."""
    if found.get("pools"):
        return ", with both pools"
    return f", with all {trainer.hosts} pods" if trainer.hosts > 1 and not found["device"] else ""


def _verdict(found: Mapping[str, Any], subject: str, reserve: float, whole: str = "") -> Iterator[str]:
    """Whether a pool or a job fits; `whole` says which pods one machine has to hold."""
    peak = found["peak"]
    capacity = found["capacity"]
    target = found["target"]
    if capacity is None:
        yield f"{subject}: the memory of {target} is unknown: needs {_gib(peak)} GiB and {reserve:.0%} of it"
        return
    verb = "fits" if found["fits"] else "does not fit"
    yield (
        f"{subject} {verb} on {target}{whole}: {_gib(peak)} of {_gib(capacity)} GiB at "
        f"the peak, of which {reserve:.0%} should stay free"
    )


def _advice(found: Mapping[str, Any]) -> Iterator[str]:
    if found["fits"] is not False:
        yield from _not_needed(found["not_needed"])
        return
    advice = found["advice"]
    if not advice:
        yield "no setting known to drl fit makes it smaller"
        return
    yield "change, one after the other:"
    before = found["peak"]
    for change in advice:
        reached = f"{_gib(change['peak'])} GiB{', fits' if change['fits'] else ''}"
        # The change lowers another phase, which does not fit either, but is not the peak yet.
        effect = f"; lowers the phase {change['phase']}" if change["peak"] >= before else ""
        yield f"  {change_text(change['setting'], change['value']):64} {reached} ({change['costs']}{effect})"
        before = change["peak"]
    if not advice[-1]["fits"]:
        yield "even then it does not fit"


def _not_needed(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Settings that save memory which the job does not need, each with the peak without it and those before it."""
    if not changes:
        return
    yield "not needed to fit, and slower:"
    for change in changes:
        setting = change["setting"]
        text = f"{field_of(setting) or setting}: true"
        yield f"  {text:64} without it {_gib(change['peak'])} GiB ({change['costs']})"


def change_text(setting: str, value: Any) -> str:
    """A trainer setting as a job's author writes it: the field of the spec, or an additional override."""
    shown = str(value).lower() if isinstance(value, bool) else value
    owner = field_of(setting)
    if owner == "spec.model.lora":
        return f"spec.model.lora: {{enabled: true, rank: {shown}}}"
    return f"{owner}: {shown}" if owner else f"add to spec.algorithm.overrides: {setting}={shown}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _size(size: int) -> str:
    if size >= TIB:
        return f"{size / TIB:.2f} TiB"
    return f"{_gib(size)} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def _count(number: int) -> str:
    for unit, name in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)
