"""Which file system a folder is on, by lines as Linux writes them."""

import pytest

from pipeline_runtime.sources.mounts import find_kind

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
40 22 0:50 / /data rw - xfs /dev/vdb rw
41 40 0:51 / /data/team rw,relatime shared:7 master:2 - nfs4 server:/team rw,vers=4.2
42 40 0:52 / /data/with\\040space rw - fuse.s3fs s3fs rw
43 22 0:53 / /hidden rw - nfs4 server:/old rw
44 43 0:54 / /hidden rw - tmpfs tmpfs rw
""".splitlines()


@pytest.mark.parametrize(
    ("path", "kind"),
    {
        "/": "ext4",
        "/home/me": "ext4",
        "/data": "xfs",
        "/data/day=1": "xfs",
        "/data/team": "nfs4",
        "/data/team/day=1": "nfs4",
        "/data/teams": "xfs",
        "/data/with space/t": "fuse.s3fs",
        "/hidden/t": "tmpfs",
    }.items(),
)
def test_the_mount_that_is_nearest_and_seen_counts(path: str, kind: str) -> None:
    assert find_kind(path, MOUNTS) == kind


def test_nothing_is_known_without_mounts() -> None:
    assert find_kind("/data", []) is None
