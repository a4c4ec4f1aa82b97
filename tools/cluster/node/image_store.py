"""containerd's images, kept between full nodes, and the lock by which one node has them.

The store lies in the cache folder, so that an image of gigabytes is imported and unpacked once. The
rest of containerd's state lies in the node's folder and goes with it. To the next node that is as
if the machine had been restarted: its kubelet deletes what former pods have left in the store.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cluster.errors import BoxError
from tools.cluster.machine import registry
from tools.cluster.node.node_binaries import CONTAINERD_MODULE
from tools.go_tools import cache_root, say

HOLDER = "node"  # in the store: the folder of the node that has it


def default_store() -> Path:
    """Return the store that nodes use; each version of containerd has its own."""
    return cache_root().with_name("containerd") / CONTAINERD_MODULE.version


@contextmanager
def holding(store: Path, folder: Path) -> Iterator[int]:
    """Lock the store for the node in `folder`; wait for the node of a test run that holds it.

    Yields a descriptor: the lock is held as long as a process keeps it open.

    Raises:
        BoxError: a detached node holds it.
    """
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(store / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell_holder(store)
            fcntl.flock(lock, fcntl.LOCK_EX)
        (store / HOLDER).write_text(str(folder))
        yield lock
    finally:
        os.close(lock)


def _tell_holder(store: Path) -> None:
    folder = (store / HOLDER).read_text()
    record = registry.find_record(Path(folder))
    if record is not None and record.is_detached:
        raise BoxError(
            f"a full node runs in {folder} and one at a time has the images in {store}: use it "
            f"(KUBECONFIG={folder}/kubeconfig) or remove it by `make cluster-down`"
        )
    say(f"waiting for the full node in {folder}, which has the images in {store}")
