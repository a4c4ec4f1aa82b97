"""Builds the egress rules for the name servers of a cluster.

If port 53 of every address was open, closed egress could be bypassed with a DNS tunnel. The chart
has the same rules for the operator's own pods (templates/_rules.tpl).
"""

from __future__ import annotations

import copy

from dataset_operator.builders.shared_parts import Document, build_peer
from dataset_operator.settings import NetworkSettings


def _build_ports(number: int) -> list[Document]:
    return [{"port": number, "protocol": protocol} for protocol in ("UDP", "TCP")]


_READY: dict[str, Document] = {
    # CoreDNS has the label of kube-dns, which it replaced.
    "KubeDns": {
        "ports": _build_ports(53),
        "to": [build_peer("kube-system", {"k8s-app": "kube-dns"})],
    },
    # In Kubernetes' manifest it listens at this address, on the node's network. With Cilium's local
    # redirect policy it is a pod.
    "NodeLocalDns": {
        "ports": _build_ports(53),
        "to": [
            {"ipBlock": {"cidr": "169.254.20.10/32"}},
            build_peer("kube-system", {"k8s-app": "node-local-dns"}),
        ],
    },
    # Network policies apply to the pod's port, which differs from that of its Service.
    "OpenShift": {
        "ports": _build_ports(5353),
        "to": [build_peer("openshift-dns", {"dns.operator.openshift.io/daemonset-dns": "default"})],
    },
}


def build_name_server_rules(network: NetworkSettings) -> list[Document]:
    """Return the rules of the setting `network.nameServers`."""
    servers = network.name_servers
    return [copy.deepcopy(_READY[s]) if isinstance(s, str) else dict(s) for s in servers]
