"""Whether files are on this machine or far away, by the kind of file system that they are on.

To Arrow an NFS share is as local as a disk; Linux tells them apart in mountinfo, see proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
# Any other may be far away: NFS, SMB, FUSE, 9p, Lustre.
_OWN_DISKS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


@cache
def is_on_own_disk(folder: str) -> bool:
    """Whether a folder's files are on this machine; False where nothing tells."""
    try:
        lines = os.fsdecode(_MOUNTS.read_bytes()).rstrip("\n").split("\n")
    except OSError:
        return False
    return find_kind(os.path.realpath(folder), lines) in _OWN_DISKS


def find_kind(path: str, mounts: Iterable[str]) -> str | None:
    """The kind of file system of a path without links, by lines of mountinfo."""
    place, longest, kind = f"{path.rstrip('/')}/", 0, None
    for line in mounts:
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), fields[4])
        point = f"{point.rstrip('/')}/"
        # Of two on one point the later one hides the other.
        if place.startswith(point) and len(point) >= longest:
            longest, kind = len(point), fields[fields.index("-") + 1]
    return kind
