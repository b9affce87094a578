"""Pod templates and the policy values that allow them, for the rules alone and for a comparison with Pod Security.

`LIFTED` has templates that `restricted` refuses and a policy that allows them; `NEVER` those that no policy allows;
`STRICTER` what the default policy refuses and `restricted` does not; `ALLOWED` what both allow.
"""

from typing import Any

Template = dict[str, Any]
Policy = dict[str, Any]


def spec(**fields: Any) -> Template:
    return {"spec": fields}


def ray(**security: Any) -> Template:
    return spec(containers=[{"name": "ray", "securityContext": security}])


def side(kind: str = "containers", **fields: Any) -> Template:
    return spec(**{kind: [{"name": "side", "image": "x", **fields}]})


def volume(**source: Any) -> Template:
    return spec(volumes=[{"name": "v", **source}])


def mounted(read_only: bool, **source: Any) -> Template:
    mount = {"name": "v", "mountPath": "/v", **({"readOnly": True} if read_only else {})}
    return spec(containers=[{"name": "ray", "volumeMounts": [mount]}], volumes=[{"name": "v", "hostPath": source}])


def probe(**handler: Any) -> Template:
    return spec(containers=[{"name": "ray", "readinessProbe": handler}])


DRIVER = "/usr/local/Ascend/driver"
READ = {"hostPaths": [{"path": DRIVER}]}
WRITE = {"hostPaths": [{"path": DRIVER, "readOnly": False}]}
LIFTED: dict[str, tuple[Template, Policy]] = {
    "a capability": (ray(capabilities={"add": ["SYS_ADMIN"]}), {"capabilities": ["SYS_ADMIN"]}),
    "a capability of an init container": (
        side("initContainers", securityContext={"capabilities": {"add": ["NET_RAW"]}}),
        {"capabilities": ["NET_RAW"]},
    ),
    "a capability of a sidecar": (
        side("initContainers", restartPolicy="Always", securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
        {"capabilities": ["IPC_LOCK"]},
    ),
    "capabilities that stay": (ray(capabilities={"drop": []}), {"capabilities": ["ALL"]}),
    "capabilities that a list of others leaves": (ray(capabilities={"drop": ["MKNOD"]}), {"capabilities": ["ALL"]}),
    "user 0 of a pod": (spec(securityContext={"runAsUser": 0, "runAsNonRoot": False}), {"runAsRoot": True}),
    "user 0 alone": (ray(runAsUser=0), {"runAsRoot": True}),
    "user 0 of a container": (ray(runAsUser=0, runAsNonRoot=False), {"runAsRoot": True}),
    "user 0 of an init container": (
        side("initContainers", securityContext={"runAsUser": 0, "runAsNonRoot": False}),
        {"runAsRoot": True},
    ),
    "a root user": (ray(runAsNonRoot=False), {"runAsRoot": True}),
    "an unknown user": (spec(securityContext={"runAsNonRoot": None}), {"runAsRoot": True}),
    "privilege escalation": (ray(allowPrivilegeEscalation=True), {"privilegeEscalation": True}),
    "privilege escalation of a sidecar": (
        side(securityContext={"allowPrivilegeEscalation": True}),
        {"privilegeEscalation": True},
    ),
    "a privileged container": (ray(privileged=True), {"privileged": True}),
    "a privileged init container": (side("initContainers", securityContext={"privileged": True}), {"privileged": True}),
    "hostProcess of the pod": (
        spec(
            securityContext={"windowsOptions": {"hostProcess": True}},
            hostNetwork=True,
            containers=[{"name": "ray", "securityContext": {"windowsOptions": {"hostProcess": True}}}],
        ),
        {"privileged": True, "hostNamespaces": ["Network"]},
    ),
    "hostNetwork": (spec(hostNetwork=True), {"hostNamespaces": ["Network"]}),
    "hostIPC": (spec(hostIPC=True), {"hostNamespaces": ["IPC"]}),
    "hostPID": (spec(hostPID=True), {"hostNamespaces": ["PID"]}),
    "hostPort": (
        spec(containers=[{"name": "ray", "ports": [{"containerPort": 9, "hostPort": 9}]}]),
        {"hostPorts": [9]},
    ),
    "hostPort of a sidecar": (
        side("initContainers", restartPolicy="Always", ports=[{"containerPort": 9, "hostPort": 9}]),
        {"hostPorts": [9]},
    ),
    "a hostPath": (mounted(True, path=DRIVER), READ),
    "a hostPath below": (mounted(True, path=f"{DRIVER}/lib64"), READ),
    "a hostPath to write": (mounted(False, path=DRIVER), WRITE),
    "a hostPath that is made": (mounted(False, path=DRIVER, type="DirectoryOrCreate"), WRITE),
    "a hostPath in place of shared memory": (
        spec(volumes=[{"name": "shared-memory", "hostPath": {"path": DRIVER}}]),
        WRITE,
    ),
    "an NFS volume": (
        volume(nfs={"server": "s", "path": "/p"}),
        {"volumeTypes": ["nfs", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected"]},
    ),
    "no seccomp profile": (
        spec(securityContext={"seccompProfile": None}),
        {"seccompProfiles": ["RuntimeDefault", "Unconfined"]},
    ),
    "an unconfined pod": (
        spec(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        {"seccompProfiles": ["RuntimeDefault", "Unconfined"]},
    ),
    "an unconfined container": (
        ray(seccompProfile={"type": "Unconfined"}),
        {"seccompProfiles": ["RuntimeDefault", "Unconfined"]},
    ),
    "a pod without AppArmor": (
        spec(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        {"appArmorProfiles": ["Unconfined"]},
    ),
    "a container without AppArmor": (ray(appArmorProfile={"type": "Unconfined"}), {"appArmorProfiles": ["Unconfined"]}),
    "an annotation without AppArmor": (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/ray": "unconfined"}}},
        {"appArmorProfiles": ["Unconfined"]},
    ),
}
NEVER: dict[str, Template] = {
    "a type of SELinux": ray(seLinuxOptions={"type": "spc_t"}),
    "a user of SELinux": spec(securityContext={"seLinuxOptions": {"user": "system_u"}}),
    "a sysctl": spec(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    "procMount": {
        "spec": {"hostUsers": False, "containers": [{"name": "ray", "securityContext": {"procMount": "Unmasked"}}]}
    },
    "a host of a probe": probe(httpGet={"host": "10.0.0.1", "path": "/", "port": 80}),
    "a host of a TCP probe": probe(tcpSocket={"host": "10.0.0.1", "port": 80}),
    "a host of a hook": spec(
        containers=[
            {"name": "ray", "lifecycle": {"preStop": {"httpGet": {"host": "10.0.0.1", "path": "/", "port": 80}}}}
        ]
    ),
}
STRICTER: dict[str, tuple[Template, Policy]] = {
    "a service account": (spec(serviceAccountName="other"), {"serviceAccounts": ["default", "oth*"]}),
    "a service account by its old name": (
        spec(serviceAccount="other", serviceAccountName="other"),
        {"serviceAccounts": ["default", "other"]},
    ),
    "a token": (spec(automountServiceAccountToken=True), {"serviceAccountTokens": True}),
    "a token by default": (spec(automountServiceAccountToken=None), {"serviceAccountTokens": True}),
    "a token in a volume": (
        volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        {"serviceAccountTokens": True},
    ),
    "nodeName": (spec(nodeName="gpu-0"), {"nodeName": True}),
}
ALLOWED: dict[str, Template] = {
    "nothing": {},
    "a sidecar": side(),
    "an init container": side("initContainers"),
    "NET_BIND_SERVICE": ray(capabilities={"add": ["NET_BIND_SERVICE"]}),
    "another user": spec(securityContext={"runAsUser": 5, "fsGroup": 0}),
    "a container that says it all": spec(
        securityContext={"seccompProfile": None},
        containers=[{"name": "ray", "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}],
    ),
    "a profile of the node": ray(seccompProfile={"type": "Localhost", "localhostProfile": "p.json"}),
    "a type of containers": ray(seLinuxOptions={"type": "container_t", "level": "s0:c1"}),
    "a safe sysctl": spec(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
    "a Secret": volume(secret={"secretName": "s"}),
    "a variable of a Secret": spec(
        containers=[{"name": "ray", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]
    ),
    "capabilities as they were": ray(capabilities={"drop": None}, allowPrivilegeEscalation=None),
    "a port": spec(containers=[{"name": "ray", "ports": [{"containerPort": 9}]}]),
    "shared memory": volume(emptyDir={"medium": "Memory"}),
    "labels": {"metadata": {"labels": {"team": "a"}, "annotations": {"a": "b"}}},
    "a node": spec(nodeSelector={"a": "b"}, tolerations=[{"operator": "Exists"}], hostUsers=False),
    "a hook": spec(containers=[{"name": "ray", "lifecycle": {"preStop": {"exec": {"command": ["true"]}}}}]),
}
