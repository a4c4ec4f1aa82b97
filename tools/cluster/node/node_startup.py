"""Brings one full node up in an empty folder: network, images, control plane, node.

`full_node.py` calls it. The part that it shares with a control plane is in `startup.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.cluster.binaries import Binaries
from tools.cluster.certificates import Identity
from tools.cluster.components import Place, Ports
from tools.cluster.contents import NODES, Contents
from tools.cluster.keys import write_keys
from tools.cluster.machine.coming_up import Running
from tools.cluster.node import node_binaries, remains
from tools.cluster.node.containerd import Containerd
from tools.cluster.node.image_store import default_store, holding
from tools.cluster.node.node_components import NODE_NAME, NodeBuilder
from tools.cluster.node.node_files import PAUSE_IMAGE, NodeFiles, NodeLayout
from tools.cluster.node.node_network import Network
from tools.cluster.node.scratch_image import build_scratch_image
from tools.cluster.startup import CONTROL_PLANE_IDENTITIES, start_control_plane

# Upstream's own: in a network of its own they are all free.
PORTS = Ports(
    etcd=2_379,
    etcd_peer=2_380,
    apiserver=6_443,
    controller_manager=10_257,
    scheduler=10_259,
    kuberay=8_082,
)
IDENTITIES = {
    **CONTROL_PLANE_IDENTITIES,
    node_binaries.KUBELET.name: Identity(user=f"system:node:{NODE_NAME}", groups=("system:nodes",)),
    node_binaries.KUBE_PROXY.name: Identity(user="system:kube-proxy"),
    node_binaries.COREDNS.name: Identity(user="coredns", groups=("system:masters",)),
    node_binaries.POLICIES.name: Identity(user="kube-router", groups=("system:masters",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a full node.

    Attributes:
        resources: the node's resources besides this machine's CPUs and memory; they need not exist,
            so that pods which request GPUs find a place.
        crds: files of CRDs to create.
        store: the folder of containerd's images, which outlives the node.
    """

    resources: Mapping[str, str] = field(default_factory=lambda: {"nvidia.com/gpu": "4"})
    crds: tuple[Path, ...] = ()
    store: Path = field(default_factory=default_store)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStartup:
    """Brings one full node up.

    Attributes:
        box_id: of the box, which its processes carry.
        layout: of its folder.
        binaries: its programs.
        settings: its settings.
        images: OCI archives to import.
        is_detached: whether the processes outlive this one.
    """

    box_id: str
    layout: NodeLayout
    binaries: Binaries
    settings: NodeSettings
    images: Sequence[Path]
    is_detached: bool

    def run(self) -> None:
        """Return once the node is Ready.

        Raises:
            ComponentError: a component does not become ready.
            BoxError: the machine refuses something, or another node has the images.
        """
        with holding(self.settings.store, self.layout.folder) as lock:
            network = Network.create(self.layout.folder, self.box_id)
            self._write_files(network)
            place = Place(address=network.node_address, enter=network.enter)
            builder = NodeBuilder(
                layout=self.layout, ports=PORTS, binaries=self.binaries, place=place
            )
            running = Running(self.box_id, self.layout, place.address, detached=self.is_detached)
            running.start(builder.containerd(lock))
            self._import_images(running)
            self._start_node(running, builder)

    def _write_files(self, network: Network) -> None:
        files = NodeFiles(
            box_id=self.box_id,
            node=self.layout,
            network=network,
            binaries=self.binaries,
            store=self.settings.store,
        )
        files.write()
        write_keys(self.layout, network.node_address, PORTS.apiserver, IDENTITIES)

    def _import_images(self, running: Running) -> None:
        client = Containerd.of(self.layout, self.binaries)
        running.wait_for("containerd to answer", client.is_ready)
        pause = self.layout.folder / "pause.tar"
        build_scratch_image(pause, PAUSE_IMAGE, self.binaries[node_binaries.PAUSE])
        for archive in (pause, *self.images):
            client.import_image(archive)

    def _start_node(self, running: Running, builder: NodeBuilder) -> None:
        contents = Contents(running.server(PORTS.apiserver))
        crds = (self.binaries.kuberay_crds, *self.settings.crds)
        start_control_plane(builder, running, contents, crds)
        remains.create_groups(self.box_id)
        remains.save_kernel_settings(self.layout.folder)
        running.start(builder.kubelet(), builder.kube_proxy(), builder.coredns())
        running.wait()
        running.wait_for("the node to be Ready", lambda: contents.count_ready_nodes() == 1)
        running.start(builder.policies())  # it asks for the node
        running.wait()
        remains.restore_kernel_settings(self.layout.folder)
        resources = dict(self.settings.resources)
        status = {"status": {"capacity": resources, "allocatable": resources}}
        contents.server.patch(f"{NODES}/{NODE_NAME}/status", status)
        running.wait_for("the first service account", contents.has_service_account)
