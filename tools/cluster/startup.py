"""Brings one control plane up in an empty folder: keys, processes in order, CRDs, nodes.

`control_plane.py` calls it, again with other ports if one was taken in the meantime. The full
node's `node_startup.py` brings up the same control plane, but for the nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.cluster import binaries
from tools.cluster.binaries import Binaries
from tools.cluster.certificates import Identity
from tools.cluster.components import Builder, Layout, Place, Ports
from tools.cluster.contents import Contents
from tools.cluster.keys import write_keys
from tools.cluster.kubectl import Kubectl
from tools.cluster.machine.coming_up import Running

KWOK_STAGES = "/apis/kwok.x-k8s.io/v1alpha1/stages"
# Of kwok's stages: nodes are Ready at once and stay so, pods run at once and go when deleted.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
PLENTY = {
    "cpu": "1000",
    "memory": "4Ti",
    "ephemeral-storage": "4Ti",
    "pods": "1000",
    "nvidia.com/gpu": "64",
}
CONTROL_PLANE_IDENTITIES = {
    binaries.KUBE_CONTROLLER_MANAGER.name: Identity(user="system:kube-controller-manager"),
    binaries.KUBE_SCHEDULER.name: Identity(user="system:kube-scheduler"),
    binaries.KUBERAY.name: Identity(user="kuberay", groups=("system:masters",)),
}
KWOK_IDENTITY = Identity(user="kwok", groups=("system:masters",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a control plane.

    Attributes:
        num_nodes: kwok's nodes, box-node-0 and on.
        node_resources: what each offers; plenty by default, so that nothing waits for room.
        crds: files of CRDs to create. The garbage collector notices kinds that are created later
            than the controllers only after half a minute.
    """

    num_nodes: int = 3
    node_resources: Mapping[str, str] = field(default_factory=lambda: PLENTY)
    crds: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """One attempt to bring a control plane up.

    Attributes:
        box_id: of the box, which its processes carry.
        layout: of its folder.
        binaries: its programs.
        settings: its settings.
        is_detached: whether the processes outlive this one.
    """

    box_id: str
    layout: Layout
    binaries: Binaries
    settings: Settings
    is_detached: bool

    def run(self, ports: Ports) -> None:
        """Return once everything is ready.

        Args:
            ports: to listen on.

        Raises:
            PortTakenError: a component lost its port; another attempt may succeed.
            ComponentError: a component does not become ready.
        """
        place, parts, settings = Place(), self.binaries, self.settings
        builder = Builder(layout=self.layout, ports=ports, binaries=parts, place=place)
        identities = {**CONTROL_PLANE_IDENTITIES, binaries.KWOK.name: KWOK_IDENTITY}
        write_keys(self.layout, place.address, ports.apiserver, identities)
        running = Running(self.box_id, self.layout, place.address, detached=self.is_detached)
        contents = Contents(running.server(ports.apiserver))
        crds = (parts.kuberay_crds, parts.kwok_crds, *settings.crds)
        start_control_plane(builder, running, contents, crds)
        running.during(lambda: contents.create_all(KWOK_STAGES, _find_stages(parts)))
        running.start(builder.kwok())
        nodes = [build_node(index, settings) for index in range(settings.num_nodes)]
        running.during(lambda: contents.create_nodes(nodes))
        running.wait()
        running.wait_for(
            "kwok's nodes to be Ready", lambda: contents.count_ready_nodes() == settings.num_nodes
        )
        # Pods are refused in a namespace until the controller manager has made its account.
        running.wait_for("the first service account", contents.has_service_account)


def start_control_plane(
    builder: Builder, running: Running, contents: Contents, crds: Sequence[Path]
) -> None:
    """Start the components of every box; the last ones may not be ready yet.

    Args:
        builder: builds its components.
        running: its processes.
        contents: of the API server.
        crds: files, or folders of them.
    """
    running.start(builder.etcd())
    running.wait()
    running.start(builder.apiserver())
    running.wait()
    running.start(builder.scheduler())
    running.during(lambda: contents.create_crds(crds))
    running.wait_for("the CRDs to be served", contents.are_crds_served)
    # Not before: its garbage collector looks for new kinds only every 30 seconds.
    running.start(builder.controller_manager(), builder.kuberay())


def _find_stages(parts: Binaries) -> list[Path]:
    """Return the files that define how kwok simulates nodes and pods."""
    found = (path for name in STAGES for path in sorted((parts.kwok_stages / name).glob("*.yaml")))
    return [path for path in found if path.name != "kustomization.yaml"]


def build_kubectl(layout: Layout, program: Path) -> Kubectl:
    """Return the kubectl of the box in `layout`."""
    cache = layout.folder / "kubectl-cache"
    return Kubectl(program=program, kubeconfig=layout.kubeconfig, cache=cache)


def build_node(index: int, settings: Settings) -> dict[str, object]:
    """Return a node that kwok simulates."""
    name = f"box-node-{index}"
    resources = dict(settings.node_resources)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def write_bin(layout: Layout, kubectl: Path) -> None:
    """Put kubectl where PATH can find it."""
    layout.bin.mkdir(exist_ok=True)
    link = layout.bin / "kubectl"
    link.unlink(missing_ok=True)
    link.symlink_to(kubectl)
