"""Traces of a full node outside of its folder: made here, and removed here.

Its pods are in control groups of its own, its volumes and root file systems are mounts below its
folder, and so is its network, which a cable joins to the machine's. All of it is found by the
box's id and folder alone, so that `registry.py` can remove it whoever started the box and however
that ended.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tools.cluster.errors import BoxError
from tools.cluster.machine.processes import group_name

GROUPS = Path("/sys/fs/cgroup")
MOUNTS = Path("/proc/self/mountinfo")
OCTAL = re.compile(rb"\\([0-7]{3})")
# Where kubelet, the network plugins' library and the shims write, whatever they are told.
LOG_LINKS = Path("/var/log/containers")
NETWORK_RESULTS = Path("/var/lib/cni/results")
SHIM_RECORDS = "containerd/io.containerd.runtime.v2.task/*/*/bootstrap.json"
# What kubelet sets for the whole machine when it starts.
KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
KERNEL = Path("/proc/sys")
SAVED_SETTINGS = "kernel-settings.json"  # in the box's folder
INTERFACES = Path("/sys/class/net")
INTERFACE_CHARACTERS = 7  # of the box's id in the name of the machine's end, which may have 15
GROUP_TIMEOUT_SECONDS = 10.0  # the kernel lets go of a killed process's group a little later


def interface_name(box_id: str) -> str:
    """Return the name of the machine's end of the cable to a box."""
    return f"lastmile{box_id[:INTERFACE_CHARACTERS]}"


def create_groups(box_id: str) -> None:
    """Make the control group of a box's pods in every hierarchy."""
    if (GROUPS / "cgroup.controllers").exists():  # version 2: one hierarchy
        for controller in (GROUPS / "cgroup.controllers").read_text().split():
            with suppress(OSError):  # some cannot be handed on, and no pod needs them
                (GROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
    for path in _find_groups(box_id):
        path.mkdir(exist_ok=True)


def save_kernel_settings(folder: Path) -> None:
    """Save the kernel settings that kubelet changes, for `restore_kernel_settings`."""
    values = {name: (KERNEL / name).read_text() for name in KERNEL_SETTINGS}
    (folder / SAVED_SETTINGS).write_text(json.dumps(values))


def restore_kernel_settings(folder: Path) -> None:
    """Restore the saved kernel settings, if there are any."""
    saved = folder / SAVED_SETTINGS
    if not saved.exists():
        return
    for name, value in json.loads(saved.read_text()).items():
        (KERNEL / name).write_text(value)
    saved.unlink()


def clear(box_id: str, folder: Path) -> None:
    """Remove all traces of a box without processes, except for the files in its folder.

    Raises:
        BoxError: the kernel still uses something.
    """
    restore_kernel_settings(folder)
    for path in [*find_shim_sockets(folder), *_find_log_links(folder)]:
        path.unlink(missing_ok=True)
    for path in NETWORK_RESULTS.glob(f"{group_name(box_id)}-*"):
        path.unlink(missing_ok=True)
    if (INTERFACES / interface_name(box_id)).exists():
        subprocess.run(["ip", "link", "delete", interface_name(box_id)], check=True)
    for mount in find_mounts(folder):
        # Lazily: nothing of the box is left to use it, and a file in it must not be deleted.
        subprocess.run(["umount", "--lazy", mount], check=True)
    for path in find_groups(box_id):
        _remove_group(path)


def find_mounts(folder: Path) -> list[str]:
    """Return the mounts below a box's folder, the latest first."""
    mounts = (line.split()[4] for line in MOUNTS.read_bytes().splitlines())
    # proc(5): a space, and what else would end the field, is an octal number such as \040.
    paths = [os.fsdecode(OCTAL.sub(lambda found: bytes([int(found[1], 8)]), m)) for m in mounts]
    return [path for path in paths if Path(path).is_relative_to(folder)][::-1]


def find_shim_sockets(folder: Path) -> list[Path]:
    """Return the sockets that containerd's records name: a killed shim leaves its own."""
    addresses = (json.loads(path.read_text())["address"] for path in folder.glob(SHIM_RECORDS))
    return [Path(address.removeprefix("unix://")) for address in addresses]


def find_groups(box_id: str) -> list[Path]:
    """Return the existing control groups of a box."""
    return [path for path in _find_groups(box_id) if path.exists()]


def _find_groups(box_id: str) -> Iterator[Path]:
    """Return where the box's group is or would be: version 1 has a folder each for controllers."""
    hierarchies = [GROUPS]
    if not (GROUPS / "cgroup.controllers").exists():
        hierarchies = [path for path in GROUPS.glob("*/") if (path / "cgroup.procs").exists()]
    return (path / group_name(box_id) for path in hierarchies)


def _remove_group(group: Path) -> None:
    deadline = time.monotonic() + GROUP_TIMEOUT_SECONDS
    for folder, _, _ in os.walk(group, topdown=False):
        while not _is_removed(Path(folder), deadline):
            time.sleep(0.05)


def _is_removed(group: Path, deadline: float) -> bool:
    """Remove one group, which works once the kernel has let go of its processes."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if time.monotonic() > deadline:
            raise BoxError(f"the control group {group} cannot be removed: {error}") from None
        return False
    return True


def _find_log_links(folder: Path) -> list[Path]:
    links = (path for path in LOG_LINKS.glob("*.log") if path.is_symlink())
    return [link for link in links if link.readlink().is_relative_to(folder)]
