"""A node that runs real pods, with a control plane, in a network namespace of its own; needs root.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KubeRay as in a control plane, and
containerd, runc, kubelet, kube-proxy, CoreDNS, and kube-router, which enforces NetworkPolicies.

    with FullNode.start(folder, images=[archive]) as node:
        node.kubectl("run", "web", "--image=…", "--image-pull-policy=Never")
        node.run([sys.executable, "client.py"])  # reaches Services by their names

`startup.py` starts the part that it shares with a control plane; `node_machine.py` removes what it
leaves on the machine.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Self

from tools.cluster import binaries, node_machine
from tools.cluster.binaries import CONTROL_PLANE_PROGRAMS, KUBECTL, KWOK, Binaries, find_full_node
from tools.cluster.box import BoxError
from tools.cluster.certificates import Identity, write_keys
from tools.cluster.components import Place, Ports
from tools.cluster.control_plane import StartedBox, require_linux
from tools.cluster.node_components import (
    NODE_NAME,
    PAUSE_IMAGE,
    NodeBuilder,
    NodeFiles,
    NodeLayout,
)
from tools.cluster.node_images import (
    Containerd,
    StreamedImage,
    build_scratch_image,
    default_store,
    holding,
)
from tools.cluster.node_machine import Network
from tools.cluster.registry import BOX_VARIABLE, COMPONENT_VARIABLE, Record
from tools.cluster.startup import (
    CONTROL_PLANE_IDENTITIES,
    NODES,
    Contents,
    Running,
    start_control_plane,
)

# Only the client has the cluster's DNS where libraries look for one.
WITH_DNS = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
CLIENT = "client"
# Sockets of a longer path cannot be bound (unix(7): 108 bytes).
LONGEST_FOLDER_CHARACTERS = 80
NODE_COMPONENTS = (
    binaries.CONTAINERD,
    binaries.KUBELET,
    binaries.KUBE_PROXY,
    binaries.COREDNS,
    binaries.POLICIES,
)
# Upstream's defaults, which are free in a network of its own.
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
    binaries.KUBELET.name: Identity(user=f"system:node:{NODE_NAME}", groups=("system:nodes",)),
    binaries.KUBE_PROXY.name: Identity(user="system:kube-proxy"),
    binaries.COREDNS.name: Identity(user="coredns", groups=("system:masters",)),
    binaries.POLICIES.name: Identity(user="kube-router", groups=("system:masters",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a full node.

    Attributes:
        resources: the node's resources besides this machine's CPUs and memory. They need not exist,
            so that pods which request GPUs are scheduled.
        crds: files of CRDs to create.
        store: the folder of containerd's images, which outlives the node.
    """

    resources: Mapping[str, str] = field(default_factory=lambda: {"nvidia.com/gpu": "4"})
    crds: tuple[Path, ...] = ()
    store: Path = field(default_factory=default_store)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStartup:
    """One start of a full node.

    Attributes:
        box_id: the id of the box, which its processes carry.
        layout: the map of its folder.
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
            BoxError: the machine refuses something, or another node uses the images.
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
        build_scratch_image(pause, PAUSE_IMAGE, self.binaries[binaries.PAUSE])
        for archive in (pause, *self.images):
            client.import_image(archive)

    def _start_node(self, running: Running, builder: NodeBuilder) -> None:
        contents = Contents(running.server(PORTS.apiserver))
        crds = (self.binaries.kuberay_crds, *self.settings.crds)
        start_control_plane(builder, running, contents, crds)
        node_machine.create_groups(self.box_id)
        node_machine.save_kernel_settings(self.layout.folder)
        running.start(builder.kubelet(), builder.kube_proxy(), builder.coredns())
        running.wait()
        running.wait_for("the node to be Ready", lambda: contents.count_ready_nodes() == 1)
        running.start(builder.policies())  # it needs the node's object
        running.wait()
        node_machine.restore_kernel_settings(self.layout.folder)
        resources = dict(self.settings.resources)
        status = {"status": {"capacity": resources, "allocatable": resources}}
        contents.server.patch(f"{NODES}/{NODE_NAME}/status", status)
        running.wait_for("the first service account", contents.has_service_account)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullNode(StartedBox):
    """A full node that runs."""

    COMPONENTS: ClassVar = (
        *(p.name for p in CONTROL_PLANE_PROGRAMS if p not in {KWOK, KUBECTL}),
        *(p.name for p in NODE_COMPONENTS),
    )

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        detached: bool = False,
        parts: Binaries | None = None,
        settings: NodeSettings | None = None,
        images: Sequence[Path] = (),
    ) -> Self:
        """Start a full node, after removing the boxes of killed runs.

        Args:
            folder: empty or missing; all files of the box except the images are in it.
            detached: whether it outlives this process; otherwise it ends with it, even by kill -9,
                except for its pods, which the next start or `make cluster-down` ends.
            parts: its programs; by default the built ones.
            settings: its settings.
            images: OCI archives of the pods' images.

        Raises:
            ToolError: the programs are not built.
            ComponentError: a component does not become ready; the message has the end of its log,
                and the folder's logs are kept.
            BoxError: this user or machine cannot run one, or another node uses the images.
        """
        require_root()
        parts = parts or find_full_node()

        def start(record: Record) -> None:
            layout = NodeLayout(folder=Path(record.folder))
            _require_short(layout.folder)
            NodeStartup(
                box_id=record.id,
                layout=layout,
                binaries=parts,
                settings=settings or NodeSettings(),
                images=images,
                is_detached=detached,
            ).run()

        return cls.bring_up(folder, parts[KUBECTL], start, detached=detached)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether the box in `folder` is a full node, not a control plane."""
        return (folder / "netns").exists()

    @property
    def layout(self) -> NodeLayout:
        """The map of its folder."""
        return NodeLayout(folder=Path(self.record.folder))

    @property
    def network(self) -> Network:
        """Its network: the addresses of the node, and of this machine for its pods."""
        return Network.read(self.layout.folder)

    def import_image(self, oci_archive: Path) -> None:
        """Import the images of an OCI archive, unless the node has them.

        Raises:
            BoxError: the file is no OCI archive.
        """
        self._containerd().import_image(oci_archive)

    def import_streamed(self, image: StreamedImage) -> None:
        """Import an image; only its missing parts are copied.

        Raises:
            BoxError: containerd refuses it.
        """
        self._containerd().import_streamed(image)

    def name_image(self, image: StreamedImage, name: str) -> None:
        """Give an imported image one more name with a tag, for the specs of pods.

        Raises:
            BoxError: the image was not imported.
        """
        self._containerd().name_image(image, name)

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in the node's network, with the cluster's DNS; it ends with the box.

        It has this machine's files, users and Python. Pods reach it at `network.node_address`.

        Args:
            command: the program and its arguments.
            env: its environment; by default this process's.
            stdout: as in subprocess.
            stderr: as in subprocess.
            cwd: its working directory.
        """
        own = {BOX_VARIABLE: self.record.id, COMPONENT_VARIABLE: CLIENT}
        return subprocess.Popen(
            self._within(command),
            env={**(os.environ if env is None else env), **own},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=True,
        )

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> str:
        """Run a program as `popen` does and return its output.

        Raises:
            BoxError: it ended with a code other than 0, or ran for longer than `timeout_seconds`.
        """
        text = " ".join(str(part) for part in command)
        with self.popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                said, error = process.communicate(timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise BoxError(f"`{text}` took longer than {timeout_seconds} s") from None
        if process.returncode != 0:
            end = error.decode(errors="replace").strip()
            raise BoxError(f"`{text}` failed with code {process.returncode}: {end}")
        return said.decode()

    def _containerd(self) -> Containerd:
        return Containerd.of(self.layout, find_full_node())

    def _within(self, command: Sequence[str | Path]) -> list[str]:
        resolver = str(self.layout.resolv_conf)
        shell = ("unshare", "--mount", "sh", "-c", WITH_DNS, resolver)
        return [*self.network.enter, *shell, *(str(part) for part in command)]


def require_root() -> None:
    """Raise where no full node can run.

    Raises:
        BoxError: this is another system, or another user.
    """
    require_linux()
    if os.geteuid() != 0:
        raise BoxError(
            "a full node runs real containers and needs root: call it as root, or use the "
            "control plane, which simulates pods (`make cluster-up`)"
        )


def _require_short(folder: Path) -> None:
    if len(str(folder)) > LONGEST_FOLDER_CHARACTERS:
        raise BoxError(
            f"{folder}: must have at most {LONGEST_FOLDER_CHARACTERS} characters, or sockets in it "
            "cannot be bound; name another folder"
        )
