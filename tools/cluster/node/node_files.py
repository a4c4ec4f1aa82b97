"""The files that the components of a full node read, as cluster-in-a-box.md found them to work.

`node_components.py` names them to the processes, `node_startup.py` has them written.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.binaries import Binaries
from tools.cluster.components import Layout
from tools.cluster.machine.processes import group_name
from tools.cluster.node import node_binaries
from tools.cluster.node.node_network import Network

POD_ADDRESSES = "10.244.0.0/24"  # the usual pod network of one node
DOMAIN = "cluster.local"
PAUSE_IMAGE = "lastmile.invalid/pause:1"  # a name that no registry can have
KUBELET_PORT = 10_250  # upstream's defaults, free in a network of its own
KUBELET_HEALTH_PORT = 10_248
DNS_READY_PORT = 8_181
# What is in /run or /opt, of no use here, or looks for file systems and tells that there are none.
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
class NodeFiles:
    """Builds the files of one full node.

    Attributes:
        box_id: of the box.
        node: the map of what the node adds to the box's folder.
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
        """Write them all."""
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
            "oomScoreAdj": 0,  # less is not always allowed
            "podLogsDir": str(self.node.pod_logs),
            "volumePluginDir": str(self.node.kubelet / "volume-plugins"),
            # The disk is the machine's, and whatever else fills it is no reason to end a test.
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
        kubeconfig = self.node.kubeconfig_of(node_binaries.COREDNS.name)
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
# Whoever asks for a name outside is told at once that there is none, instead of waiting.
. {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""

    def _containerd_config(self) -> str:
        socket = self.node.containerd_socket
        shim = self.binaries[node_binaries.SHIM]
        runc = self.binaries[node_binaries.RUNC]
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
restrict_oom_score_adj = true  # less than containerd's own is not always allowed

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [{_quote(self.binaries[node_binaries.CNI_PLUGINS[0]].parent)}]
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
