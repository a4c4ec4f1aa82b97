"""A node that runs real pods, with a control plane, in a network namespace of its own; needs root.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KubeRay as in a control plane, and
containerd, runc, kubelet, kube-proxy, CoreDNS, and kube-router, which enforces NetworkPolicies.

    with FullNode.start(folder, images=[archive]) as node:
        node.kubectl("run", "web", "--image=…", "--image-pull-policy=Never")
        node.run([sys.executable, "client.py"])  # sees Services and their names

`node_binaries.py` says where the programs come from, `node_startup.py` in which order they start,
`remains.py` cleans up after them.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Self

from tools.cluster.binaries import CONTROL_PLANE_PROGRAMS, KUBECTL, KWOK, Binaries
from tools.cluster.control_plane import require_linux
from tools.cluster.errors import BoxError
from tools.cluster.machine.processes import BOX_VARIABLE, COMPONENT_VARIABLE
from tools.cluster.machine.registry import Record
from tools.cluster.node.containerd import Containerd, StreamedImage
from tools.cluster.node.node_binaries import (
    CONTAINERD,
    COREDNS,
    KUBE_PROXY,
    KUBELET,
    POLICIES,
    find_full_node,
)
from tools.cluster.node.node_files import NodeLayout
from tools.cluster.node.node_network import Network
from tools.cluster.node.node_startup import NodeSettings, NodeStartup
from tools.cluster.started import StartedBox

# The client sees the cluster's DNS where libraries look for one, and nobody else does.
WITH_DNS = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
CLIENT = "client"
# Sockets of a longer path cannot be bound (unix(7): 108 bytes).
LONGEST_FOLDER_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class FullNode(StartedBox):
    """A full node that runs."""

    COMPONENTS: ClassVar = (
        *(p.name for p in CONTROL_PLANE_PROGRAMS if p not in {KWOK, KUBECTL}),
        *(p.name for p in (CONTAINERD, KUBELET, KUBE_PROXY, COREDNS, POLICIES)),
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
        """Bring a full node up, after cleaning up behind runs that were killed.

        Args:
            folder: empty or not there yet; all of the box but the images is in it.
            detached: whether it outlives this process; else it ends with it, kill -9 included, but
                for its pods, which the next start or `make cluster-down` ends.
            parts: its programs; by default the built ones.
            settings: its settings.
            images: OCI archives that pods will want.

        Raises:
            ToolError: the programs are not built.
            ComponentError: a component does not become ready; its log's end is in the message, the
                folder's logs are kept.
            BoxError: this user or machine cannot, or another node has the images.
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
        """Its network: the addresses of the node, and of this machine as its pods see it."""
        return Network.read(self.layout.folder)

    def import_image(self, oci_archive: Path) -> None:
        """Import the images of an OCI archive; images that the node has already cost nothing.

        Raises:
            BoxError: it is no OCI archive.
        """
        Containerd.of(self.layout, find_full_node()).import_image(oci_archive)

    def import_streamed(self, image: StreamedImage) -> None:
        """Import an image; only its missing parts are copied.

        Raises:
            BoxError: containerd refuses it.
        """
        Containerd.of(self.layout, find_full_node()).import_streamed(image)

    def name_image(self, image: StreamedImage, name: str) -> None:
        """Give an image that was imported one more name, as a pod's spec has it, with a tag.

        Raises:
            BoxError: it was not imported.
        """
        Containerd.of(self.layout, find_full_node()).name_image(image, name)

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

        It is on this machine otherwise: files, users, Python. Pods reach what it listens on at
        `network.node_address`.

        Args:
            command: the program and its arguments.
            env: its environment; this process's own by default.
            stdout: as subprocess has it.
            stderr: as subprocess has it.
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
        """Run a program as `popen` does and return what it printed.

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
            "a full node runs real containers and needs root: call it as root, or take the control "
            "plane, which plays its pods (`make cluster-up`)"
        )


def _require_short(folder: Path) -> None:
    if len(str(folder)) > LONGEST_FOLDER_CHARACTERS:
        raise BoxError(
            f"{folder}: must have at most {LONGEST_FOLDER_CHARACTERS} characters, or sockets in it "
            "cannot be bound; name another folder"
        )
