"""The command lines of a node's components, as in cluster-in-a-box.md; pure.

`node_files.py` builds the files that they name, `node_startup.py` runs what is built here.
"""

from dataclasses import dataclass, replace

from tools.cluster.components import SERVICE_ADDRESSES, Builder, Component, Probe
from tools.cluster.node import node_binaries
from tools.cluster.node.node_files import (
    DNS_READY_PORT,
    KUBELET_HEALTH_PORT,
    POD_ADDRESSES,
    NodeLayout,
)
from tools.go_tools import Program

NODE_NAME = "box-node-0"
PROXY_HEALTH_PORT = 10_256  # upstream's defaults, free in a network of its own
PROXY_METRICS_PORT = 10_249
POLICIES_HEALTH_PORT = 20_244


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBuilder(Builder):
    """Builds the components of one full node: those of a control plane, and the node's."""

    layout: NodeLayout

    def containerd(self, lock: int) -> Component:
        """The container runtime.

        Args:
            lock: the descriptor by which it and its shims hold the image store.
        """
        config = f"--config={self.layout.containerd_config}"
        component = self._build(node_binaries.CONTAINERD, None, config)
        return replace(component, keeps=(lock,))

    def kubelet(self) -> Component:
        return self._build_node(
            node_binaries.KUBELET,
            KUBELET_HEALTH_PORT,
            "/healthz",
            f"--config={self.layout.kubelet_config}",
            f"--kubeconfig={self.layout.kubeconfig_of(node_binaries.KUBELET.name)}",
            f"--root-dir={self.layout.kubelet}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={self.place.address}",
        )

    def kube_proxy(self) -> Component:
        """Makes the addresses of Services lead to pods, by iptables."""
        address = self.place.address
        return self._build_node(
            node_binaries.KUBE_PROXY,
            PROXY_HEALTH_PORT,
            "/healthz",
            f"--kubeconfig={self.layout.kubeconfig_of(node_binaries.KUBE_PROXY.name)}",
            f"--hostname-override={NODE_NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_ADDRESSES}",
            f"--healthz-bind-address={address}:{PROXY_HEALTH_PORT}",
            f"--metrics-bind-address={address}:{PROXY_METRICS_PORT}",
            "--conntrack-max-per-core=0",  # the machine's, not the namespace's: leave it
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--oom-score-adj=0",
        )

    def coredns(self) -> Component:
        """The cluster's DNS, as a process."""
        return self._build_node(
            node_binaries.COREDNS, DNS_READY_PORT, "/ready", f"-conf={self.layout.corefile}"
        )

    def policies(self) -> Component:
        """Enforces NetworkPolicies, by iptables and sets of addresses."""
        name = node_binaries.POLICIES.name
        return self._build_node(
            node_binaries.POLICIES,
            POLICIES_HEALTH_PORT,
            "/healthz",
            f"--kubeconfig={self.layout.kubeconfig_of(name)}",
            f"--hostname-override={NODE_NAME}",
            f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
            f"--health-addr={self.place.address}",
            f"--health-port={POLICIES_HEALTH_PORT}",
        )

    def _nodes(self) -> tuple[str, ...]:
        pki = self.layout.pki
        return (
            "--authorization-mode=Node,RBAC",
            "--kubelet-preferred-address-types=InternalIP",  # nobody resolves the node's name
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'client.crt'}",
            f"--kubelet-client-key={pki / 'client.key'}",
        )

    def _build_node(self, program: Program, port: int, path: str, *arguments: str) -> Component:
        return self._build(program, Probe(port=port, path=path, is_tls=False), *arguments)
