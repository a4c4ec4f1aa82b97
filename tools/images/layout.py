"""Archives of images, made from one folder that has every layer once: an OCI image layout.

A layer of gigabytes is copied from buildah's store once. An archive is written by copying files, to
a file or to a reader, which may have most of them already.
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import io
import json
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tools.images.buildah import copy_image

NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An OCI image layout.

    Attributes:
        folder: the folder of the layout.
    """

    folder: Path

    def add(self, stored: str, name: str) -> None:
        """Take an image from buildah's store.

        Args:
            stored: its name there.
            name: its name here, with the registry: as kubelet asks containerd for it.
        """
        copy_image(stored, f"oci:{self.folder}:{name}")

    def names(self) -> list[str]:
        """Return the images' names, the one that was added last at the end."""
        return [manifest["annotations"][NAME] for manifest in self._manifests()]

    def digest(self, name: str) -> str:
        """Return the digest of an image's manifest."""
        [manifest] = self._named(name)
        return str(manifest["digest"])

    def size_bytes(self, name: str) -> int:
        """Return the total size of an image's files."""
        return sum(blob.stat().st_size for blob in self._blobs(self._named(name)))

    def write_archive(self, name: str, stream: IO[bytes], known: Collection[str] = ()) -> None:
        """Write one image as an OCI archive.

        Args:
            name: of the image.
            stream: is written to from its beginning to its end.
            known: digests of what the reader has already; left out.
        """
        manifests = self._named(name)
        index = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
        with tarfile.open(fileobj=stream, mode="w|") as written:
            entry = tarfile.TarInfo("index.json")
            entry.size = len(index)
            written.addfile(entry, io.BytesIO(index))
            written.add(self.folder / "oci-layout", "oci-layout")
            for blob in self._blobs(manifests):
                if f"{blob.parent.name}:{blob.name}" not in known:
                    written.add(blob, str(blob.relative_to(self.folder)))

    def remove(self, name: str) -> None:
        """Remove an image, and the layers that only it has."""
        kept = [m for m in self._manifests() if m["annotations"][NAME] != name]
        self._index_file.write_text(json.dumps({"schemaVersion": 2, "manifests": kept}))
        needed = set(self._blobs(kept))
        for blob in (self.folder / "blobs" / "sha256").iterdir():
            if blob not in needed:
                blob.unlink()

    def _named(self, name: str) -> list[dict[str, Any]]:
        return [m for m in self._manifests() if m["annotations"][NAME] == name]

    @property
    def _index_file(self) -> Path:
        return self.folder / "index.json"

    def _manifests(self) -> list[dict[str, Any]]:
        """Return the index's entries, one per image."""
        if not self._index_file.exists():
            return []
        manifests: list[dict[str, Any]] = json.loads(self._index_file.read_text())["manifests"]
        return manifests

    def _blobs(self, manifests: list[dict[str, Any]]) -> list[Path]:
        """Return the files that images consist of, each once."""
        files: dict[Path, None] = {}
        for described in manifests:
            manifest = json.loads(self._blob(described).read_text())
            for part in (described, manifest["config"], *manifest["layers"]):
                files[self._blob(part)] = None
        return list(files)

    def _blob(self, described: dict[str, Any]) -> Path:
        algorithm, _, digest = str(described["digest"]).partition(":")
        return self.folder / "blobs" / algorithm / digest
