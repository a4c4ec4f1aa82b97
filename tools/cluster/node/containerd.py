"""Talks to the containerd of a full node, by its own client."""

import contextlib
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from tools.cluster.binaries import Binaries
from tools.cluster.errors import BoxError
from tools.cluster.node import node_binaries
from tools.cluster.node.node_files import NodeLayout
from tools.go_tools import say

NAMESPACE = "k8s.io"  # containerd's name for what is Kubernetes'
DIGEST = "sha256:"


class StreamedImage(Protocol):
    """An image that writes itself as an OCI archive."""

    @property
    def reference(self) -> str:
        """Its name."""

    @property
    def digest(self) -> str:
        """The digest of its manifest."""

    def write_archive(self, stream: IO[bytes], known: Collection[str] = ()) -> None:
        """Write the archive without the files of the known digests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containerd:
    """The containerd that listens on a socket.

    Attributes:
        ctr: its client program.
        socket: that it listens on.
    """

    ctr: Path
    socket: Path

    @classmethod
    def of(cls, layout: NodeLayout, parts: Binaries) -> "Containerd":
        """Return the containerd of a full node."""
        return cls(ctr=parts[node_binaries.CTR], socket=layout.containerd_socket)

    def is_ready(self) -> bool:
        """Return whether it answers."""
        return self.socket.exists() and self._ctr("version").returncode == 0

    def import_image(self, archive: Path) -> None:
        """Import the images of an OCI archive, unless they are there already.

        Raises:
            BoxError: it is no OCI archive, or containerd refuses it.
        """
        if read_digests(archive) <= {*self._images().values()}:
            return
        say(f"importing {archive}")
        self.run("images", "import", str(archive))
        self._delete_unnamed()

    def import_streamed(self, image: StreamedImage) -> None:
        """Import an image; only its missing parts are written.

        Raises:
            BoxError: containerd refuses it.
        """
        if image.digest in self._images().values():
            return
        known = self.run("content", "list", "--quiet").split()
        say(f"importing {image.reference}")
        to = (f"--address={self.socket}", f"--namespace={NAMESPACE}")
        command = [str(self.ctr), *to, "images", "import", "-"]
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said) as process,
        ):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it says why it ended
                image.write_archive(process.stdin, known)
            if process.wait() != 0:
                said.seek(0)
                reason = said.read().decode(errors="replace").strip()
                raise BoxError(f"containerd does not import {image.reference}: {reason}")
        self._delete_older(image.reference)

    def name_image(self, image: StreamedImage, name: str) -> None:
        """Give an image one more name; another image with that name loses it.

        Raises:
            BoxError: the image is not there.
        """
        digests = self._images()
        if digests.get(name) == image.digest:
            return
        found = [name for name, digest in digests.items() if digest == image.digest]
        if not found:
            raise BoxError(f"{image.reference}: was not imported, so it cannot be named {name}")
        self.run("images", "tag", "--force", found[0], name)

    def run(self, *arguments: str) -> str:
        """Run its client and return its output.

        Raises:
            BoxError: it failed.
        """
        done = self._ctr(*arguments)
        if done.returncode != 0:
            raise BoxError(f"`ctr {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout

    def _delete_older(self, reference: str) -> None:
        """Delete images with the same name and another tag: they were built of other sources."""
        repository, _, tag = reference.rpartition(":")
        found = (name.rpartition(":") for name in self._images())
        older = [
            f"{name}:{other}"
            for name, _, other in found
            if name.endswith(f"/{repository}") and other != tag
        ]
        if older:
            self.run("images", "remove", *older)
        self._delete_unnamed()

    def _delete_unnamed(self) -> None:
        """Delete images that lost their names to newer ones, or they pile up."""
        images = self._images()
        named = {digest for name, digest in images.items() if not name.startswith(DIGEST)}
        unnamed = [name for name, digest in images.items() if digest not in named]
        if unnamed:
            self.run("images", "remove", *unnamed)

    def _images(self) -> dict[str, str]:
        """Return the digest of each image by its name; each has its digest for a name, too."""
        rows = (row.split() for row in self.run("images", "list").splitlines()[1:])
        return {row[0]: next(word for word in row[1:] if word.startswith(DIGEST)) for row in rows}

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        to = (f"--address={self.socket}", f"--namespace={NAMESPACE}")
        return subprocess.run(
            [str(self.ctr), *to, *arguments], capture_output=True, text=True, check=False
        )


def read_digests(archive: Path) -> set[str]:
    """Return the digests of the images in an OCI archive.

    Raises:
        BoxError: it is none.
    """
    try:
        with tarfile.open(archive, "r:") as opened:
            index = opened.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index is not None else []
            return {manifest["digest"] for manifest in manifests}
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        raise BoxError(
            f"{archive}: must be an OCI archive, as `buildah push IMAGE oci-archive:FILE:NAME` "
            f"writes it: {error}"
        ) from None
