"""Builds container images that hold one static program and nothing else.

An image is an OCI archive: what `FullNode.import_image` and every registry client read. The same
program makes the same archive, byte by byte.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Go's names for what the kernel says
MEDIA_TYPE = "application/vnd.oci.image"
NOBODY = "65534:65534"  # no root, as `restricted` namespaces want it


def build_scratch_image(
    archive: Path, name: str, program: Path, arguments: Sequence[str] = ()
) -> None:
    """Write an image that runs `program`.

    Args:
        archive: the OCI archive to write.
        name: of the image, with registry and tag: `example.com/pause:1`.
        program: a static one; it lies at / in the image, by its name.
        arguments: that it is run with.
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
    """Return an archive of `files`; without times and owners, so that it depends on them alone."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
