"""Buildah, on a store of our own: the machine's other images are neither seen nor touched.

Debian's packages bring the programs. Only root can build: the layers are overlay mounts, and what
runs in them is kept apart by chroot alone, which works where namespaces are not to be had.
"""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools import debian
from tools.go_tools import ERROR_LINES, ToolError, cache_root

# skopeo writes layers as they are; the buildah of Debian 12 compresses them, for minutes.
_PROGRAMS = ("buildah", "debootstrap", "skopeo")
_KEYRING = debian.Package(  # that debootstrap checks Debian's signatures by; Ubuntu has it not
    name="debian-archive-keyring",
    is_there=Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists,
)
PACKAGES = (*(debian.program(name, name) for name in _PROGRAMS), _KEYRING)


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
        ToolError: they cannot be had here.
    """
    reason = missing_for_images()
    if reason is not None:
        raise ToolError(reason)
    debian.install(PACKAGES)


def store_folders() -> tuple[Path, Path]:
    """Return the folders of buildah's store, and of its state since boot, such as mounts."""
    root = images_root()
    digest = hashlib.sha256(str(root).encode()).hexdigest()
    return root / "store", Path("/run/lastmile", digest[:12])


def buildah(*arguments: str | Path) -> str:
    """Run buildah on our store and return its output."""
    root, run_root = store_folders()
    store = ("--root", root, "--runroot", run_root, "--storage-driver", "overlay")
    return run("buildah", *store, *arguments)


def copy_image(name: str, target: str) -> None:
    """Copy an image of our store, its layers uncompressed.

    Args:
        name: in the store.
        target: in skopeo's words, such as `oci:FOLDER:NAME`.
    """
    root, run_root = store_folders()
    source = f"containers-storage:[overlay@{root}+{run_root}]{name}"
    run("skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, target)


def temporary_folder() -> Path:
    """Return the folder of unfinished layers and cache mounts (gigabytes), beside the store."""
    return images_root() / "tmp"


def run(*command: str | Path) -> str:
    """Run a command and return its output; an error contains the end of the output."""
    temporary = temporary_folder()
    temporary.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "TMPDIR": str(temporary), "BUILDAH_ISOLATION": "chroot"}
    done = _capture([str(part) for part in command], env)
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).splitlines()[-ERROR_LINES:])
        shown = " ".join(done.args)
        raise ToolError(f"`{shown}` failed with code {done.returncode}:\n{said}")
    return done.stdout


def _capture(command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
