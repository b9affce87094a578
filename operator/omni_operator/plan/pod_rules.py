"""PURE: checks of a pod template against the cluster's policy.

The rules are the Pod Security standard `restricted`, with the policy's exceptions. They expect a final template:
merged, without nulls, and with values of the right types.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from omni_operator.api.base import FieldPath, Violation

from .pod_policy import EVERY_CAPABILITY, HostPath, PodPolicy

Object = Mapping[str, Any]
VALUE = "jobs.podPolicy"
HOST_NAMESPACES = {"hostNetwork": "Network", "hostIPC": "IPC", "hostPID": "PID"}
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
HANDLERS = (
    ("livenessProbe",),
    ("readinessProbe",),
    ("startupProbe",),
    ("lifecycle", "postStart"),
    ("lifecycle", "preStop"),
)


def find_breaches(template: Object, policy: PodPolicy, audience: str) -> Iterator[Violation]:
    """What the policy forbids in a template: each path, and the chart value that would allow it.

    Args:
        audience: audience of the operator's own tokens.
    """
    spec: Object = template.get("spec", {})
    yield from _pod(spec, policy)
    yield from _identity(spec, policy, audience)
    yield from _volumes(spec, policy)
    yield from _app_armor_annotations(template.get("metadata", {}), policy)
    for at, container in containers_of(spec):
        yield from _container(at, container, spec.get("securityContext", {}), policy)
    for at, secret in _secrets(spec):
        yield from refuse_secret(at, secret, policy)


def containers_of(spec: Object) -> Iterator[tuple[FieldPath, Object]]:
    """All containers of a pod spec, with their paths in the template."""
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind, ())):
            yield ("spec", kind, index), container


def refuse_service_account(at: FieldPath, name: str, policy: PodPolicy) -> Iterator[Violation]:
    """A violation if jobs may not use the service account."""
    if not _matches(name, policy.service_accounts):
        yield _not_allowed(at, f"the service account {name!r}", "serviceAccounts", policy.service_accounts)


def refuse_secret(at: FieldPath, name: str, policy: PodPolicy) -> Iterator[Violation]:
    """A violation if jobs may not use the Secret."""
    if not _matches(name, policy.secrets):
        yield _not_allowed(at, f"the Secret {name!r}", "secrets", policy.secrets)


def _pod(spec: Object, policy: PodPolicy) -> Iterator[Violation]:
    for field, name in HOST_NAMESPACES.items():
        if spec.get(field) and name not in policy.host_namespaces:
            yield _not_allowed(("spec", field), field, "hostNamespaces", policy.host_namespaces)
    if spec.get("nodeName") and not policy.node_name:
        yield _not_allowed(("spec", "nodeName"), "nodeName", "nodeName")
    if "ephemeralContainers" in spec:
        yield Violation(("spec", "ephemeralContainers"), "must not be given: a new pod has no ephemeral containers")
    security = spec.get("securityContext", {})
    yield from _shared(("spec", "securityContext"), security, policy)
    for index, sysctl in enumerate(security.get("sysctls", ())):
        if sysctl.get("name") not in SYSCTLS:
            text = f"{sysctl.get('name')} is not allowed: it is not one of the sysctls of Pod Security `restricted`"
            yield Violation(("spec", "securityContext", "sysctls", index), text)


def _identity(spec: Object, policy: PodPolicy, audience: str) -> Iterator[Violation]:
    named = [field for field in ("serviceAccountName", "serviceAccount") if spec.get(field)]
    for field in named or ["serviceAccountName"]:
        yield from refuse_service_account(("spec", field), spec.get(field) or "default", policy)
    if policy.service_account_tokens:
        return
    if spec.get("automountServiceAccountToken") is not False:
        at: FieldPath = ("spec", "automountServiceAccountToken")
        yield _not_allowed(at, "a token of the service account", "serviceAccountTokens")
    for index, volume in enumerate(spec.get("volumes", ())):
        for number, source in enumerate(volume.get("projected", {}).get("sources", ())):
            token = source.get("serviceAccountToken")
            if (token is not None and token.get("audience") != audience) or "podCertificate" in source:
                at = ("spec", "volumes", index, "projected", "sources", number)
                yield _not_allowed(at, "a token of the service account", "serviceAccountTokens")


def _volumes(spec: Object, policy: PodPolicy) -> Iterator[Violation]:
    mounts = [mount for _, container in containers_of(spec) for mount in container.get("volumeMounts", ())]
    for index, volume in enumerate(spec.get("volumes", ())):
        for kind in sorted(volume.keys() - {"name"}):
            at: FieldPath = ("spec", "volumes", index, kind)
            if kind == "hostPath":
                yield from _host_path(at, volume, mounts, policy)
            elif kind not in policy.volume_types:
                yield _not_allowed(at, f"a volume of type {kind}", "volumeTypes", policy.volume_types)


def _host_path(at: FieldPath, volume: Object, mounts: Sequence[Object], policy: PodPolicy) -> Iterator[Violation]:
    path = str(volume["hostPath"].get("path", ""))
    kind = str(volume["hostPath"].get("type", ""))
    allowed = [entry for entry in policy.host_paths if _contains(entry, path)]
    if not allowed:
        yield _not_allowed(at, f"hostPath {path}", "hostPaths", [entry.path for entry in policy.host_paths])
    elif all(entry.read_only for entry in allowed):
        writable = [mount for mount in mounts if mount.get("name") == volume["name"] and not mount.get("readOnly")]
        if writable or kind.endswith("OrCreate"):
            text = f"hostPath {path} is allowed for reading only: every mount needs readOnly: true"
            yield Violation(at, f"{text}, and its type must not create it" if kind.endswith("OrCreate") else text)


def _contains(entry: HostPath, path: str) -> bool:
    allowed, wanted = (posixpath.normpath(f"/{raw.strip('/')}").rstrip("/") for raw in (entry.path, path))
    return ".." not in path.split("/") and f"{wanted}/".startswith(f"{allowed}/")


def _container(at: FieldPath, container: Object, pod: Object, policy: PodPolicy) -> Iterator[Violation]:
    security = container.get("securityContext", {})
    inside = (*at, "securityContext")
    yield from _shared(inside, security, policy)
    privileged = security.get("privileged", False)
    if privileged and not policy.privileged:
        yield _not_allowed((*inside, "privileged"), "a privileged container", "privileged")
    if security.get("allowPrivilegeEscalation") is not False and not (policy.privilege_escalation or privileged):
        yield _not_allowed((*inside, "allowPrivilegeEscalation"), "privilege escalation", "privilegeEscalation")
    if security.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True and not policy.run_as_root:
        yield _not_allowed((*inside, "runAsNonRoot"), "a container without runAsNonRoot: true", "runAsRoot")
    seccomp = security.get("seccompProfile", pod.get("seccompProfile"))
    if seccomp is None and "Unconfined" not in policy.seccomp_profiles:
        at_profile = (*inside, "seccompProfile")
        yield _not_allowed(
            at_profile, "a container without a seccomp profile", "seccompProfiles", policy.seccomp_profiles
        )
    yield from _capabilities((*inside, "capabilities"), security.get("capabilities", {}), policy)
    if security.get("procMount", "Default") != "Default":
        yield Violation((*inside, "procMount"), "is not allowed: Pod Security `restricted` allows only Default")
    for index, port in enumerate(container.get("ports", ())):
        number = port.get("hostPort", 0)
        if number and number not in policy.host_ports:
            port_at = (*at, "ports", index, "hostPort")
            yield _not_allowed(port_at, f"hostPort {number}", "hostPorts", policy.host_ports)
    yield from _handlers(at, container)


def _shared(at: FieldPath, context: Object, policy: PodPolicy) -> Iterator[Violation]:
    """Rules that hold for the security context of a pod and of a container."""
    if context.get("runAsUser") == 0 and not policy.run_as_root:
        yield _not_allowed((*at, "runAsUser"), "user 0", "runAsRoot")
    if context.get("runAsNonRoot") is False and not policy.run_as_root:
        yield _not_allowed((*at, "runAsNonRoot"), "a root user", "runAsRoot")
    for field, value, allowed in (
        ("seccompProfile", "seccompProfiles", policy.seccomp_profiles),
        ("appArmorProfile", "appArmorProfiles", policy.app_armor_profiles),
    ):
        profile = context.get(field)
        if profile is not None and profile.get("type") not in allowed:
            yield _not_allowed((*at, field), f"the profile {profile.get('type')}", value, allowed)
    if context.get("windowsOptions", {}).get("hostProcess") and not policy.privileged:
        yield _not_allowed((*at, "windowsOptions", "hostProcess"), "hostProcess", "privileged")
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        text = "is not allowed: Pod Security `restricted` allows only the types of containers, and no user or role"
        yield Violation((*at, "seLinuxOptions"), text)


def _capabilities(at: FieldPath, given: Object, policy: PodPolicy) -> Iterator[Violation]:
    if EVERY_CAPABILITY in policy.capabilities:
        return
    if "ALL" not in given.get("drop", ()):
        yield _not_allowed((*at, "drop"), "a container that does not drop ALL", "capabilities", policy.capabilities)
    for name in given.get("add", ()):
        if name not in policy.capabilities:
            yield _not_allowed((*at, "add"), f"the capability {name}", "capabilities", policy.capabilities)


def _handlers(at: FieldPath, container: Object) -> Iterator[Violation]:
    for path in HANDLERS:
        handler: Object = container
        for step in path:
            handler = handler.get(step, {})
        for kind in ("httpGet", "tcpSocket"):
            if handler.get(kind, {}).get("host"):
                yield Violation((*at, *path, kind, "host"), "is not allowed: the node would connect to any host")


def _app_armor_annotations(metadata: Object, policy: PodPolicy) -> Iterator[Violation]:
    kinds = {"": "RuntimeDefault", "runtime": "RuntimeDefault", "localhost": "Localhost"}
    for name, value in metadata.get("annotations", {}).items():
        kind = kinds.get(str(value).partition("/")[0], "Unconfined")
        if name.startswith(APP_ARMOR) and kind not in policy.app_armor_profiles:
            at = ("metadata", "annotations", name)
            yield _not_allowed(at, f"the profile {value!r}", "appArmorProfiles", policy.app_armor_profiles)


def _secrets(spec: Object) -> Iterator[tuple[FieldPath, str]]:
    """Secrets that a pod spec names."""
    for index, reference in enumerate(spec.get("imagePullSecrets", ())):
        yield ("spec", "imagePullSecrets", index), str(reference.get("name"))
    for at, container in containers_of(spec):
        for index, entry in enumerate(container.get("env", ())):
            if "secretKeyRef" in entry.get("valueFrom", {}):
                yield (*at, "env", index), str(entry["valueFrom"]["secretKeyRef"].get("name"))
        for index, source in enumerate(container.get("envFrom", ())):
            if "secretRef" in source:
                yield (*at, "envFrom", index), str(source["secretRef"].get("name"))
    for index, volume in enumerate(spec.get("volumes", ())):
        for source in (*volume.values(), *volume.get("projected", {}).get("sources", ())):
            for name in _source_secrets(source):
                yield ("spec", "volumes", index), name


def _source_secrets(source: Any) -> Iterator[str]:
    """Secrets of a source of a volume: types differ in the name of the field."""
    if isinstance(source, Mapping):
        if "secretName" in source:
            yield str(source["secretName"])
        for field in ("secret", "secretRef", "nodePublishSecretRef"):
            reference = source.get(field)
            if isinstance(reference, Mapping) and "name" in reference:
                yield str(reference["name"])
        # Drivers of SMB and Azure shares take the name of a Secret of the pod's namespace.
        for name, value in source.get("volumeAttributes", {}).items():
            if name.lower() == "secretname":
                yield str(value)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _not_allowed(at: FieldPath, what: str, value: str, allowed: Sequence[object] | None = None) -> Violation:
    now = "" if allowed is None else f", now {', '.join(map(str, allowed)) or 'empty'}"
    return Violation(at, f"{what} is not allowed: the cluster's admin decides ({VALUE}.{value} of the chart{now})")
