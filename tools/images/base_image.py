"""The base that images are built on here, where no registry is at hand: Debian with its Python.

It stands in for the Dockerfiles' default, which is Debian of the same release, through the same
build argument. It is made once per machine; its key is part of an image's name.
"""

import hashlib
import platform
import shutil
from pathlib import Path

from tools.go_tools import say
from tools.images.buildah import buildah, images_root, run
from tools.images.surroundings import SUITE, debian_mirror

# What the Dockerfiles' default has too: an interpreter with venv, and the certificates.
_PACKAGES = ("ca-certificates", "python3", "python3-venv")
# Left by debootstrap: this machine's names, and what apt downloaded.
_LEFTOVERS = ("etc/hostname", "etc/resolv.conf", "var/cache/apt", "var/lib/apt/lists", "var/log")


def base_reference() -> str:
    """Return the base's name in the store, which contains a hash of its inputs."""
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
    run("debootstrap", "--variant=minbase", include, SUITE, folder, debian_mirror())
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
