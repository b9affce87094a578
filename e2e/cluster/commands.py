"""Command lines of the control plane. PURE: what runs where is decided here, and started elsewhere."""

from dataclasses import dataclass
from pathlib import Path

from .tools import Tools

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # A request is then written when its answer is complete; a watch also when it begins.
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
AUDIT_LOG = "audit.jsonl"
ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a control plane listens and keeps its files.

    `address` is the API server's own; the others listen on the loopback. `services` is the range of service
    addresses. `whole` says whether nodes run pods: then the API server calls kubelets and knows itself as a service.
    `api_flags` are more flags of the API server.
    """

    folder: Path
    tools: Tools
    address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    manager_port: int
    scheduler_port: int
    services: str = "10.96.0.0/16"
    whole: bool = False
    node_grace_s: int = 16
    api_flags: tuple[str, ...] = ()

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def audit_log(self) -> Path:
        return self.folder / AUDIT_LOG

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.json"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.api_port}"


def etcd(layout: Layout) -> list[str]:
    """etcd on the loopback. It does not flush to the disk: the cluster never outlives the machine."""
    client = f"http://127.0.0.1:{layout.etcd_port}"
    peer = f"http://127.0.0.1:{layout.etcd_peer_port}"
    return [
        layout.tools.program("etcd"),
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def api_server(layout: Layout) -> list[str]:
    """The API server, with an audit log that has one complete line for each request."""
    pki = layout.pki
    command = [
        layout.tools.program("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        f"--bind-address={layout.address}",
        f"--advertise-address={layout.address}",
        f"--secure-port={layout.api_port}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-cluster-ip-range={layout.services}",
        f"--service-account-key-file={pki / 'accounts.crt'}",
        f"--service-account-signing-key-file={pki / 'accounts.key'}",
        f"--service-account-issuer={ISSUER}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--cert-dir={layout.folder / 'apiserver'}",
        f"--audit-policy-file={layout.audit_policy}",
        f"--audit-log-path={layout.audit_log}",
        # A line is in the file before the handler of its request returns.
        "--audit-log-mode=blocking",
        *layout.api_flags,
    ]
    if not layout.whole:
        return [*command, "--endpoint-reconciler-type=none"]
    return [
        *command,
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controller_manager(layout: Layout) -> list[str]:
    """The controllers: owners are collected, jobs make pods, lost nodes are seen after `node_grace_s`."""
    pki = layout.pki
    return [
        layout.tools.program("kube-controller-manager"),
        *_as_client(layout, "controller-manager", layout.manager_port),
        f"--service-account-private-key-file={pki / 'accounts.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--use-service-account-credentials=true",
        # By default its garbage collector sends 20 requests a second, and the deletion of 1,000 jobs takes minutes.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={layout.node_grace_s}s",
    ]


def scheduler(layout: Layout) -> list[str]:
    """The scheduler, with its default configuration."""
    return [layout.tools.program("kube-scheduler"), *_as_client(layout, "scheduler", layout.scheduler_port)]


def kwok(layout: Layout) -> list[str]:
    """kwok, for nodes that carry its annotation and the pods on them."""
    return [
        layout.tools.program("kwok"),
        f"--kubeconfig={layout.pki / 'admin.kubeconfig'}",
        f"--config={layout.tools.stages}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--enable-crds=",
        "--node-lease-duration-seconds=40",
        "--node-port=0",
    ]


def _as_client(layout: Layout, name: str, port: int) -> list[str]:
    """Flags of a component that speaks to the API server and answers on the loopback alone."""
    kubeconfig = layout.pki / f"{name}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={layout.folder / name}",
    ]
