"""Buildah on a store of our own, the base of the images, and the folder that archives come from.

The machine's other images are neither read nor changed. Debian's packages bring the programs. Only
root can build: the layers are overlay mounts, and chroot alone isolates what runs in them, since
namespaces are not available everywhere. `images.py` builds Lastmile's images with it.

The repository names none of this machine's package sources. pip's settings (its files and PIP_*
variables), their certificates and TORCH_INDEX_URL become secrets of the build: files that are
mounted while a step runs, and are in no layer. The base contains apt's Debian mirror.
"""

import ast
import hashlib
import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tools import packages
from tools.go_tools import ToolError, cache_root, run, say

SUITE = "bookworm"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
# Settings about where packages come from; the others are about installing on this machine.
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_CERTIFICATES = "/run/secrets/ca.crt"  # where the secret of that name is mounted

# skopeo writes layers as they are; the buildah of Debian 12 compresses them, for minutes.
_PROGRAMS = ("buildah", "debootstrap", "skopeo")
_KEYRING = packages.Package(  # by which debootstrap checks Debian's signatures; Ubuntu lacks it
    name="debian-archive-keyring",
    is_there=Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists,
)
PACKAGES = (*(packages.program(name, name) for name in _PROGRAMS), _KEYRING)


def images_root() -> Path:
    """Return the folder that keeps images, archives and layers of all checkouts."""
    return cache_root().with_name("images")


def missing_for_images() -> str | None:
    """Return why this user cannot build images, as a sentence, or None."""
    if os.geteuid() != 0:
        return (
            "images are built by buildah as root, and this is another user: use `docker build` or "
            "`podman build` as docs/images.md shows"
        )
    return None


def require_programs() -> None:
    """Install the programs unless they are available.

    Raises:
        ToolError: this user cannot install or use them.
    """
    if reason := missing_for_images():
        raise ToolError(reason)
    packages.install(PACKAGES)


def store_folders() -> tuple[Path, Path]:
    """Return the folders of buildah's store, and of its state since boot, such as mounts."""
    root = images_root()
    digest = hashlib.sha256(str(root).encode()).hexdigest()
    return root / "store", Path("/run/lastmile", digest[:12])


def buildah(*arguments: str | Path) -> str:
    """Run buildah on our store and return its output."""
    root, run_root = store_folders()
    store = ("--root", root, "--runroot", run_root, "--storage-driver", "overlay")
    return _run("buildah", *store, *arguments)


def copy_image(name: str, target: str) -> None:
    """Copy an image of our store, its layers uncompressed.

    Args:
        name: in the store.
        target: as skopeo names it, such as `oci:FOLDER:NAME`.
    """
    root, run_root = store_folders()
    source = f"containers-storage:[overlay@{root}+{run_root}]{name}"
    _run("skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, target)


def temporary_folder() -> Path:
    """Return the folder of unfinished layers and cache mounts (gigabytes), beside the store."""
    return images_root() / "tmp"


def _run(*command: str | Path) -> str:
    """Run a command that builds or copies images, and return its output."""
    temporary_folder().mkdir(parents=True, exist_ok=True)
    own = {"TMPDIR": str(temporary_folder()), "BUILDAH_ISOLATION": "chroot"}
    return run(command, env=own)


# The Dockerfiles' default has these too: an interpreter with venv, and the certificates.
_PACKAGES = ("ca-certificates", "python3", "python3-venv")
# Files that debootstrap leaves: this machine's names, and apt's downloads.
_LEFTOVERS = ("etc/hostname", "etc/resolv.conf", "var/cache/apt", "var/lib/apt/lists", "var/log")


def base_reference() -> str:
    """Return the name of the base in the store, which contains a hash of its inputs.

    No registry is needed for it. It replaces the Dockerfiles' default, which is Debian of the same
    release, through the same build argument; its name is part of the key of an image.
    """
    recipe = " ".join([SUITE, platform.machine(), *_PACKAGES, *_LEFTOVERS])
    return f"localhost/lastmile-base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def build_base() -> str:
    """Make the base unless the store has it, and return its name there."""
    reference = base_reference()
    if not buildah("images", "--quiet", "--filter", f"reference={reference}").strip():
        folder = images_root() / "base"
        say(f"bootstrapping Debian {SUITE} (a minute, once)")
        try:
            _bootstrap(folder)
            _commit(folder, reference)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return reference


def _bootstrap(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    include = f"--include={','.join(_PACKAGES)}"
    _run("debootstrap", "--variant=minbase", include, SUITE, folder, debian_mirror())
    for leftover in _LEFTOVERS:
        path = folder / leftover
        if path.is_dir():
            shutil.rmtree(path)
            path.mkdir()
        else:
            path.unlink(missing_ok=True)


def _commit(folder: Path, reference: str) -> None:
    container = buildah("from", "scratch").strip()
    try:
        buildah("add", "--quiet", container, folder, "/")
        buildah("commit", "--quiet", container, reference)
    finally:
        buildah("rm", container)


def debian_mirror() -> str:
    """Return the mirror of SUITE that apt is set to, or Debian's own."""
    if shutil.which("apt-get") is None:
        return DEFAULT_MIRROR
    shape = "$(SITE) $(RELEASE) $(COMPONENT)"
    for line in run(["apt-get", "indextargets", "--format", shape]).splitlines():
        site, _, rest = line.partition(" ")
        if rest == f"{SUITE} main":
            return site
    return DEFAULT_MIRROR


def torch_index() -> str | None:
    """Return the index that torch is taken from, None for the usual one."""
    return os.environ.get("TORCH_INDEX_URL") or None


def torch_source() -> str:
    """Return a word that identifies the source of torch without naming it."""
    index = torch_index()
    return hashlib.sha256(index.encode()).hexdigest()[:12] if index else "pypi"


def parse_pip_settings(listed: str) -> dict[str, str]:
    """Return the settings that `pip config list` printed, later ones (variables) over earlier."""
    lines = re.findall(r"^(?:global|install|:env:)\.([a-z-]+)=(.+)$", listed, re.MULTILINE)
    return {name: str(ast.literal_eval(value)) for name, value in lines}


def build_pip_configuration(settings: dict[str, str]) -> str:
    """Return a pip.conf for a build on this machine's index and certificates."""
    kept = {name: settings[name] for name in _PIP_SETTINGS if name in settings}
    if "cert" in settings:
        kept["cert"] = _CERTIFICATES
    lines = [f"{name} = " + value.replace("\n", "\n  ") for name, value in kept.items()]
    return "\n".join(["[global]", "disable-pip-version-check = true", *lines, ""])


@contextmanager
def secrets() -> Iterator[list[str]]:
    """Yield buildah's options for the secrets of a build, whose files are deleted afterwards."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = parse_pip_settings(run(command))
    with tempfile.TemporaryDirectory() as folder:
        files = {"pip.conf": Path(folder, "pip.conf")}
        files["pip.conf"].write_text(build_pip_configuration(settings))
        if "cert" in settings:
            files["ca.crt"] = Path(settings["cert"])
        index = torch_index()
        if index:
            files["torch-index-url"] = Path(folder, "torch-index-url")
            files["torch-index-url"].write_text(index)
        yield [f"--secret=id={name},src={path}" for name, path in files.items()]


NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An OCI image layout: a folder that has every layer of its images once.

    A layer of gigabytes is copied from buildah's store once. Archives are written by copying files;
    a reader that has some of them already gets only the others.
    https://github.com/opencontainers/image-spec/blob/main/image-layout.md

    Attributes:
        folder: the folder of the layout.
    """

    folder: Path

    def add(self, stored: str, name: str) -> None:
        """Copy an image from buildah's store.

        Args:
            stored: its name there.
            name: its name here, with the registry, as kubelet requests it from containerd.
        """
        copy_image(stored, f"oci:{self.folder}:{name}")

    def names(self) -> list[str]:
        """Return the names of the images, the last added one at the end."""
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
            known: digests of files that the reader has already, which are left out.
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
