"""PURE: mistakes in a pod that schemas accept, so that the API server finds them only when KubeRay creates the pods.

The rules are from Kubernetes (`pkg/apis/core/validation`), the ones that authors of jobs break most. A pod that breaks
another one is refused then, and the job has the reason `PodsRefused`. One is stricter: Kubernetes takes a negative
grace period for one second, in which no trainer saves a checkpoint.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from omni_operator.api.base import FieldPath, Violation
from omni_operator.api.suggestions import did_you_mean
from omni_operator.plan.pod_rules import containers_of

from . import quantity

Object = Mapping[str, Any]
RESOURCES = ("cpu", "memory", "ephemeral-storage")
HUGE_PAGES = "hugepages-"
MAY_BE_NEGATIVE = {"priority", "tolerationSeconds"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def find_mistakes(template: Object) -> Iterator[Violation]:
    """Mistakes in a final template: merged, without nulls, and with values of the right types."""
    spec: Object = template.get("spec", {})
    volumes = [volume["name"] for volume in spec.get("volumes", ())]
    yield from _volumes(spec)
    known: set[str] = set()
    for at, container in containers_of(spec):
        if container["name"] in known:
            yield Violation((*at, "name"), f"{container['name']!r} is the name of another container: write another one")
        known.add(container["name"])
        yield from _container(at, container, volumes)
    yield from _negative(spec, ("spec",))


def _volumes(spec: Object) -> Iterator[Violation]:
    for index, volume in enumerate(spec.get("volumes", ())):
        at: FieldPath = ("spec", "volumes", index)
        yield from _name((*at, "name"), volume["name"])
        if len(sources := sorted(volume.keys() - {"name"})) > 1:
            yield Violation(at, f"has {len(sources)} sources, {', '.join(sources)}: keep one")


def _container(at: FieldPath, container: Object, volumes: Sequence[str]) -> Iterator[Violation]:
    yield from _name((*at, "name"), container["name"])
    if not container.get("image"):
        yield Violation((*at, "image"), "must be given")
    for field in ("volumeMounts", "volumeDevices"):
        for index, mount in enumerate(container.get(field, ())):
            name = mount.get("name")  # one without it has another error
            if name is not None and name not in volumes:
                hint = did_you_mean(name, volumes) or ": add it to volumes"
                yield Violation((*at, field, index, "name"), f"the pod has no volume {name!r}{hint}")
    resources: Object = container.get("resources", {})
    for violation in find_wrong_resources(resources.get("requests", {}), resources.get("limits", {})):
        yield Violation((*at, "resources", *violation.at), violation.text)


def find_wrong_resources(requests: Object, limits: Object) -> Iterator[Violation]:
    """Mistakes in the resources of a container; `at` is relative to them."""
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            if "/" not in name and name not in RESOURCES and not name.startswith(HUGE_PAGES):
                text = (
                    f"containers have no resource {name!r}: write {', '.join(RESOURCES)}, {HUGE_PAGES}SIZE, or a name "
                    "with a domain, such as nvidia.com/gpu"
                )
                yield Violation((kind, name), text)
    for name, requested in requests.items():
        asked = _amount(requested)
        limit = _amount(limits.get(name))
        at = ("requests", name)
        if _is_whole(name):
            if asked is not None and asked != limit:
                yield Violation(at, f"is {requested}: must have an equal limit, because this resource is never shared")
        elif asked is not None and limit is not None and asked > limit:
            yield Violation(at, f"is {requested}: more than the limit, which is {limits[name]}")


def _is_whole(name: str) -> bool:
    """Whether a container has a resource for itself, as accelerators and huge pages."""
    return name.startswith(HUGE_PAGES) or ("/" in name and "kubernetes.io/" not in name)


def _amount(given: Any) -> Fraction | None:
    """A quantity; None for one that is absent or in a form that `quantity` does not read."""
    try:
        return quantity.value(str(given))
    except ValueError:
        return None


def _name(at: FieldPath, name: str) -> Iterator[Violation]:
    if not _NAME.fullmatch(name):
        text = f"is {name!r}: must have at most 63 lower-case letters, digits and '-', with no '-' first or last"
        yield Violation(at, text)


def _negative(value: Any, at: FieldPath) -> Iterator[Violation]:
    match value:
        case Mapping():
            for name, inner in value.items():
                if name not in MAY_BE_NEGATIVE:
                    yield from _negative(inner, (*at, name))
        case list():
            for index, inner in enumerate(value):
                yield from _negative(inner, (*at, index))
        case int() | float() if value < 0:
            yield Violation(at, f"is {value}: must not be negative")
