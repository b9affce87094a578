#!/bin/bash
# PID 1 of a node, in network, mount, PID and UTS namespaces of its own: when it ends, all that runs on the node does.
# Usage: node.sh NAME FOLDER BIN ADDRESS PODS KUBECONFIG LABELS
set -eu
name=$1 folder=$2 bin=$3 address=$4 pods=$5 kubeconfig=$6 labels=$7
hostname "$name"
ip link set lo up
# Mounts made here stay here, and are shared with the pods that ask for that.
mount --make-rshared /
# Network namespaces of pods stay inside the node and vanish with it.
mount -t tmpfs tmpfs /run/netns
for path in /var/lib/kubelet /var/lib/cni /var/log/containers /run/containerd; do
  mkdir -p "$folder/private$path"
  mount --bind "$folder/private$path" "$path"
done
echo 1 > /proc/sys/net/ipv4/ip_forward
if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]; then echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables; fi
iptables -t nat -A POSTROUTING -s "$pods" ! -d "$pods" ! -o cni0 -j MASQUERADE
containerd -c "$folder/containerd.toml" > "$folder/output/containerd.log" 2>&1 &
until [ -S "$folder/containerd.sock" ]; do
  kill -0 $! || { echo "containerd ended:"; tail -5 "$folder/output/containerd.log"; exit 1; }
  sleep 0.1
done
"$bin/kubelet" --config="$folder/kubelet.yaml" --kubeconfig="$kubeconfig" --root-dir="$folder/kubelet" \
  --cert-dir="$folder/kubelet-pki" --hostname-override="$name" --node-ip="$address" --node-labels="$labels" --v=1 \
  > "$folder/output/kubelet.log" 2>&1 &
"$bin/kube-proxy" --config="$folder/proxy.yaml" > "$folder/output/kube-proxy.log" 2>&1 &
# A node that loses one of the three is broken and says so. The loop also reaps orphans of pods.
daemons=$(jobs -p)
while :; do
  wait -n || true
  for pid in $daemons; do kill -0 "$pid" 2>/dev/null || { echo "a daemon of $name ended"; exit 1; }; done
done
