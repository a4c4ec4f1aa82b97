"""Keeps the cache folder from filling the disk; `build.py` calls it while it has the folder's lock.

An image of the runtime has 6 GB, and so have the remains of a killed build.
"""

import shutil
import time

from tools.go_tools import say
from tools.images.buildah import buildah, temporary_folder
from tools.images.layout import Layout

NUM_KEPT = 2  # images of a kind: today's, and the one that a look at another branch comes back to
_OLD_SECONDS = 24 * 3600.0  # no command of ours takes that long
_CACHE_MOUNTS = "buildah-cache"  # pip's, which is to stay
# How buildah names the containers of a build; those of tests have names of their own.
_OF_A_BUILD = "working-container"


def remove_older(kind: str, present: str, layout: Layout) -> None:
    """Keep NUM_KEPT images of a kind, and the layers of those.

    Args:
        kind: what the images' names begin with, the registry apart.
        present: the name of the image to keep in any case.
    """
    names = [name for name in layout.names() if name.rpartition("/")[2].startswith(f"{kind}:")]
    older = [name for name in names[:-NUM_KEPT] if name.rpartition("/")[2] != present]
    for name in older:
        reference = name.rpartition("/")[2]
        say(f"removing {reference}, which is older")
        layout.remove(name)
        buildah("rmi", "--force", f"localhost/{reference}")
    if older:
        buildah("rmi", "--prune")


def remove_remains(layout: Layout) -> None:
    """Remove the remains of failed and killed builds."""
    for container in buildah("containers", "--format", "{{.ContainerName}}").split():
        if _OF_A_BUILD in container:
            buildah("rm", container)
    for file in layout.folder.glob("oci-put-blob*"):
        file.unlink()
    for path in temporary_folder().iterdir():
        if path.name != _CACHE_MOUNTS and time.time() - path.stat().st_mtime > _OLD_SECONDS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
