"""PURE: strategic merge of pod templates, as in Kubernetes: mappings by key, lists by name."""

from typing import Any

# Merge keys of lists; other lists are replaced.
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}


def merge_templates(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Merge `patch` into `base`. Null removes a field; a list item with a known key is merged, others are appended.

    The result shares unchanged parts with both, because copies were most of the time of rendering a job.
    """
    merged = dict(base)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = _one_source(name, merged[name], merge_templates(merged[name], value), value)
        elif name in KEYS and _keyed(KEYS[name], merged.get(name)) and _keyed(KEYS[name], value):
            merged[name] = _by_key(KEYS[name], merged[name], value)
        else:
            merged[name] = value
    return merged


def _keyed(key: str, items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) and key in item for item in items)


def _by_key(key: str, base: list[Any], patch: list[Any]) -> list[Any]:
    by_key = {item[key]: item for item in base}
    for item in patch:
        by_key[item[key]] = _item(key, by_key[item[key]], item) if item[key] in by_key else item
    return list(by_key.values())


def _item(key: str, base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Merge one item; a volume or variable of another kind replaces the base's, so that it has one source."""
    kinds = {"value", "valueFrom"} if "value" in {*base, *patch} or "valueFrom" in {*base, *patch} else set()
    if kinds and kinds & patch.keys():
        base = {name: value for name, value in base.items() if name not in kinds}
    elif key == "name" and _is_volume(base) and _is_volume(patch) and base.keys().isdisjoint(patch.keys() - {"name"}):
        base = {"name": base["name"]}
    return merge_templates(base, patch)


def _is_volume(item: dict[str, Any]) -> bool:
    return (
        len(item) == 2 and "image" not in item and all(isinstance(item[name], dict) for name in item.keys() - {"name"})
    )


def _one_source(name: str, old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A probe has one handler: the user's, if it names one."""
    if name.endswith("Probe"):
        ways = {"httpGet", "exec", "tcpSocket", "grpc"}
        if ways & patch.keys():
            return {key: value for key, value in new.items() if key not in ways or key in patch}
    return new
