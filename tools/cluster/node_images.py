"""The images of a full node: its containerd, the store that outlives it, and images of one program.

The store is in the cache folder, so that an image of gigabytes is imported and unpacked once; one
node at a time holds its lock. The rest of containerd's state is in the node's folder and is removed
with it. To the next node that looks like a restart of the machine: its kubelet deletes what former
pods have left in the store.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from tools.cluster import binaries, registry
from tools.cluster.binaries import CONTAINERD_MODULE, Binaries
from tools.cluster.box import BoxError
from tools.cluster.node_components import NodeLayout
from tools.go_tools import cache_root, say

NAMESPACE = "k8s.io"  # containerd's name for Kubernetes' part
DIGEST = "sha256:"
HOLDER = "node"  # a file in the store: the folder of the node that holds it
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Go's names, by the kernel's
MEDIA_TYPE = "application/vnd.oci.image"
NOBODY = "65534:65534"  # not root, as `restricted` namespaces demand


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
    """Talks to the containerd of a full node, by its own client.

    Attributes:
        ctr: its client program.
        socket: the socket of containerd.
    """

    ctr: Path
    socket: Path

    @classmethod
    def of(cls, layout: NodeLayout, parts: Binaries) -> "Containerd":
        """Return the containerd of a full node."""
        return cls(ctr=parts[binaries.CTR], socket=layout.containerd_socket)

    def is_ready(self) -> bool:
        """Return whether it answers."""
        return self.socket.exists() and self._ctr("version").returncode == 0

    def import_image(self, archive: Path) -> None:
        """Import the images of an OCI archive, unless containerd has them.

        Raises:
            BoxError: the file is no OCI archive, or containerd refuses it.
        """
        if read_digests(archive) <= {*self._images().values()}:
            return
        say(f"importing {archive}")
        self.run("images", "import", str(archive))
        self._delete_unnamed()

    def import_streamed(self, image: StreamedImage) -> None:
        """Import an image, writing only its missing parts.

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
            with (
                contextlib.suppress(BrokenPipeError),
                process.stdin,
            ):  # its output says why it ended
                image.write_archive(process.stdin, known)
            if process.wait() != 0:
                said.seek(0)
                reason = said.read().decode(errors="replace").strip()
                raise BoxError(f"containerd does not import {image.reference}: {reason}")
        self._delete_older(image.reference)

    def name_image(self, image: StreamedImage, name: str) -> None:
        """Give an image one more name; another image with that name loses it.

        Raises:
            BoxError: the image was not imported.
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
        """Delete images with the same name and another tag, which were built from other sources."""
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
        """Delete images that lost their names to newer ones, which would accumulate."""
        images = self._images()
        named = {digest for name, digest in images.items() if not name.startswith(DIGEST)}
        unnamed = [name for name, digest in images.items() if digest not in named]
        if unnamed:
            self.run("images", "remove", *unnamed)

    def _images(self) -> dict[str, str]:
        """Return the digest of each image by its name; the digest is a name of each image, too."""
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
        BoxError: the file is no OCI archive.
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


def default_store() -> Path:
    """Return the store of all nodes with this version of containerd."""
    return cache_root().with_name("containerd") / CONTAINERD_MODULE.version


@contextmanager
def holding(store: Path, folder: Path) -> Iterator[int]:
    """Lock the store for the node in `folder`; wait for the node of a test run that holds it.

    Yields a descriptor: the lock is held as long as any process has it open.

    Raises:
        BoxError: a detached node holds it.
    """
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(store / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report_holder(store)
            fcntl.flock(lock, fcntl.LOCK_EX)
        (store / HOLDER).write_text(str(folder))
        yield lock
    finally:
        os.close(lock)


def _report_holder(store: Path) -> None:
    """Report the node that holds the store; raise if it would hold it for good."""
    folder = (store / HOLDER).read_text()
    record = registry.find_record(Path(folder))
    if record is not None and record.is_detached:
        raise BoxError(
            f"the full node in {folder} uses the images in {store}, and only one can: use that "
            f"node (KUBECONFIG={folder}/kubeconfig), or remove it by `make cluster-down`"
        )
    say(f"waiting for the full node in {folder}, which uses the images in {store}")


def build_scratch_image(
    archive: Path, name: str, program: Path, arguments: Sequence[str] = ()
) -> None:
    """Write an image of one static program, as an OCI archive.

    Every registry client reads it. The same program gives the same archive, byte by byte.

    Args:
        archive: the file to write.
        name: the image's, with registry and tag: `example.com/pause:1`.
        program: a static program, which is at / in the image, under its own name.
        arguments: the program's arguments.
    """
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    system = {"os": "linux", "architecture": ARCHITECTURES.get(platform.machine(), "amd64")}
    config = _json(
        {
            **system,
            "config": {
                "Entrypoint": [f"/{program.name}"],
                "Cmd": [*arguments],
                "User": NOBODY,
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA_TYPE}.manifest.v1+json",
            "config": _describe(f"{MEDIA_TYPE}.config.v1+json", config),
            "layers": [_describe(f"{MEDIA_TYPE}.layer.v1.tar", layer)],
        }
    )
    index = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA_TYPE}.index.v1+json",
        "manifests": [
            {
                **_describe(f"{MEDIA_TYPE}.manifest.v1+json", manifest),
                "platform": system,
                "annotations": {"io.containerd.image.name": name},
            }
        ],
    }
    blobs = {f"blobs/sha256/{_hash(blob)}": blob for blob in (layer, config, manifest)}
    layout = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    archive.write_bytes(_tar({**layout, **blobs}, mode=0o644))


def _describe(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{_hash(blob)}"


def _hash(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    """Return an archive of files without times and owners, so that only the files determine it."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
