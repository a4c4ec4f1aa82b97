"""The command lines of a full node's components, and the files that they read.

`full_node.py` writes the files and runs the components. `components.py` has those of the control
plane.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from tools.cluster import binaries
from tools.cluster.binaries import Binaries
from tools.cluster.box import Layout
from tools.cluster.components import SERVICE_ADDRESSES, Builder, Component, Probe
from tools.cluster.node_machine import Network, group_name
from tools.go_tools import Program

NODE_NAME = "box-node-0"
PROXY_HEALTH_PORT = 10_256  # upstream's defaults, free in a network of its own
PROXY_METRICS_PORT = 10_249
POLICIES_HEALTH_PORT = 20_244
POD_ADDRESSES = "10.244.0.0/24"  # the usual pod network of one node
DOMAIN = "cluster.local"
PAUSE_IMAGE = "lastmile.invalid/pause:1"  # no registry can have this name
KUBELET_PORT = 10_250  # upstream's defaults, free in a network of its own
KUBELET_HEALTH_PORT = 10_248
DNS_READY_PORT = 8_181
# Plugins that are of no use here: they need /run, /opt or certain file systems.
UNUSED_PLUGINS = (
    "io.containerd.nri.v1.nri",
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout(Layout):
    """Paths in a full node's folder."""

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def containerd_state(self) -> Path:
        return self.folder / "containerd"

    @property
    def containerd_config(self) -> Path:
        return self.folder / "containerd.toml"

    @property
    def runc(self) -> Path:
        return self.folder / "runc"

    @property
    def cni(self) -> Path:
        return self.folder / "cni"

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"

    @property
    def kubelet_config(self) -> Path:
        return self.folder / "kubelet.json"

    @property
    def pod_logs(self) -> Path:
        return self.folder / "pod-logs"

    @property
    def corefile(self) -> Path:
        return self.folder / "Corefile"

    @property
    def resolv_conf(self) -> Path:
        """Names the cluster's DNS, for pods and clients in the node's network."""
        return self.folder / "resolv.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBuilder(Builder):
    """Builds the components of one full node: those of a control plane, and the node's."""

    layout: NodeLayout

    def containerd(self, lock: int) -> Component:
        """The container runtime.

        Args:
            lock: the descriptor by which it and its shims hold the lock of the image store.
        """
        config = f"--config={self.layout.containerd_config}"
        component = self._build(binaries.CONTAINERD, None, config)
        return replace(component, keeps=(lock,))

    def kubelet(self) -> Component:
        return self._build_node(
            binaries.KUBELET,
            KUBELET_HEALTH_PORT,
            "/healthz",
            f"--config={self.layout.kubelet_config}",
            f"--kubeconfig={self.layout.kubeconfig_of(binaries.KUBELET.name)}",
            f"--root-dir={self.layout.kubelet}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={self.place.address}",
        )

    def kube_proxy(self) -> Component:
        """Routes the addresses of Services to pods, by iptables."""
        address = self.place.address
        return self._build_node(
            binaries.KUBE_PROXY,
            PROXY_HEALTH_PORT,
            "/healthz",
            f"--kubeconfig={self.layout.kubeconfig_of(binaries.KUBE_PROXY.name)}",
            f"--hostname-override={NODE_NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_ADDRESSES}",
            f"--healthz-bind-address={address}:{PROXY_HEALTH_PORT}",
            f"--metrics-bind-address={address}:{PROXY_METRICS_PORT}",
            "--conntrack-max-per-core=0",  # a setting of the machine, not of the namespace: keep it
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--oom-score-adj=0",
        )

    def coredns(self) -> Component:
        """The cluster's DNS, as a process."""
        return self._build_node(
            binaries.COREDNS, DNS_READY_PORT, "/ready", f"-conf={self.layout.corefile}"
        )

    def policies(self) -> Component:
        """Enforces NetworkPolicies, by iptables and sets of addresses."""
        name = binaries.POLICIES.name
        return self._build_node(
            binaries.POLICIES,
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
            "--kubelet-preferred-address-types=InternalIP",  # the node's name does not resolve
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'client.crt'}",
            f"--kubelet-client-key={pki / 'client.key'}",
        )

    def _build_node(self, program: Program, port: int, path: str, *arguments: str) -> Component:
        return self._build(program, Probe(port=port, path=path, is_tls=False), *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """Builds the files of one full node.

    Attributes:
        box_id: the id of the box.
        node: the map of the box's folder.
        network: its network.
        binaries: its programs.
        store: the folder of containerd's images.
    """

    box_id: str
    node: NodeLayout
    network: Network
    binaries: Binaries
    store: Path

    def write(self) -> None:
        """Write all files."""
        files = {
            self.node.containerd_config: self._containerd_config(),
            self.node.cni / "box.conflist": json.dumps(self._cni_config(), indent=2),
            self.node.kubelet_config: json.dumps(self._kubelet_config(), indent=2),
            self.node.corefile: self._corefile(),
            self.node.resolv_conf: (
                f"nameserver {self.network.node_address}\n"
                f"search svc.{DOMAIN} {DOMAIN}\n"
                "options ndots:5\n"
            ),
        }
        for path, text in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def _kubelet_config(self) -> dict[str, object]:
        pki, address = self.node.pki, self.network.node_address
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "port": KUBELET_PORT,
            "healthzBindAddress": address,
            "healthzPort": KUBELET_HEALTH_PORT,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "server.crt"),
            "tlsPrivateKeyFile": str(pki / "server.key"),
            "clusterDNS": [address],
            "clusterDomain": DOMAIN,
            "resolvConf": str(self.node.resolv_conf),
            "containerRuntimeEndpoint": f"unix://{self.node.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{group_name(self.box_id)}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,  # a lower score is not always allowed
            "podLogsDir": str(self.node.pod_logs),
            "volumePluginDir": str(self.node.kubelet / "volume-plugins"),
            # The disk is the machine's: if other files fill it, no test should end.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        }

    def _cni_config(self) -> dict[str, object]:
        return {
            "cniVersion": "1.0.0",
            "name": group_name(self.box_id),
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods",
                    "isGateway": True,
                    "ipMasq": True,
                    "hairpinMode": True,  # a pod may call itself by its Service
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": POD_ADDRESSES}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": str(self.node.cni / "addresses"),
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def _corefile(self) -> str:
        address = self.network.node_address
        kubeconfig = self.node.kubeconfig_of(binaries.COREDNS.name)
        zones = f"{DOMAIN} in-addr.arpa ip6.arpa"
        return f"""{zones} {{
    bind {address}
    errors
    ready {address}:{DNS_READY_PORT}
    kubernetes {zones} {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
}}
# A query for a name outside is answered at once: there is no such name.
. {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""

    def _containerd_config(self) -> str:
        socket = self.node.containerd_socket
        shim = self.binaries[binaries.SHIM]
        runc = self.binaries[binaries.RUNC]
        return f"""version = 3
imports = []
root = {_quote(self.store)}
state = {_quote(self.node.containerd_state)}
disabled_plugins = {json.dumps(UNUSED_PLUGINS)}

[grpc]
address = {_quote(socket)}

[ttrpc]
address = {_quote(f"{socket}.ttrpc")}

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = {_quote(PAUSE_IMAGE)}

[plugins.'io.containerd.cri.v1.runtime']
netns_mounts_under_state_dir = true
restrict_oom_score_adj = true  # a lower score than containerd's is not always allowed

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [{_quote(self.binaries[binaries.CNI_PLUGINS[0]].parent)}]
conf_dir = {_quote(self.node.cni)}
use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = {_quote(shim)}

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = {_quote(runc)}
Root = {_quote(self.node.runc)}
SystemdCgroup = false
"""


def _quote(value: Path | str) -> str:
    """Return a TOML string, which JSON's are too."""
    return json.dumps(str(value))
