"""A full node's share of this machine outside its folder: made here, and removed by `clear`.

Everything of the node runs in a network namespace, so that its addresses, routes and iptables rules
change none of the machine's. A pair of virtual interfaces connects the two, with an address of a
range for documentation (RFC 5737) at each end: the machine reaches the node's address and nothing
behind it. The namespace has no route to anywhere else. It is a mount in the box's folder.

The node's pods are in control groups of its own; its volumes and root file systems are mounts below
its folder. All of it is found by the id and the folder of the box alone, so that `registry.py` can
remove it whoever started the box and however that ended.
"""

import ipaddress
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tools.cluster.box import BoxError
from tools.cluster.components import SERVICE_ADDRESSES
from tools.go_tools import cache_root, exclusive

RANGES = ("198.51.100.0/24", "203.0.113.0/24")  # TEST-NET-2 and -3; some networks use -1
CABLE_PREFIX = 30  # bits: a network of two addresses, the machine's and the node's
NODE_INTERFACE = "eth0"
LOCK = "networks"  # a folder in the cache: one at a time picks addresses
FORWARD = "echo 1 > /proc/sys/net/ipv4/ip_forward"
GROUPS = Path("/sys/fs/cgroup")
MOUNTS = Path("/proc/self/mountinfo")
OCTAL = re.compile(rb"\\([0-7]{3})")
# Kubelet, the network plugins' library and the shims write here, whatever their settings.
LOG_LINKS = Path("/var/log/containers")
NETWORK_RESULTS = Path("/var/lib/cni/results")
SHIM_RECORDS = "containerd/io.containerd.runtime.v2.task/*/*/bootstrap.json"
# Kubelet sets these for the whole machine when it starts.
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
INTERFACE_CHARACTERS = 7  # of the box's id; the kernel allows a name of 15 characters
GROUP_TIMEOUT_SECONDS = 10.0  # the kernel releases a killed process's group a little later


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A full node's network.

    Attributes:
        namespace: the file by which processes enter it.
        node_address: the node's address, of its servers and of pods in the node's network.
        machine_address: the machine's, as the node and its pods see it.
        interface: the machine's interface of the pair.
    """

    namespace: str
    node_address: str
    machine_address: str
    interface: str

    @property
    def enter(self) -> tuple[str, ...]:
        """The command that starts a program in it, without a process of its own."""
        # Not `ip netns exec`, which remounts /sys and hides the control groups.
        return ("nsenter", f"--net={self.namespace}")

    @classmethod
    def create(cls, folder: Path, box_id: str) -> Self:
        """Create a network whose namespace is a file in `folder`.

        Raises:
            BoxError: the kernel refuses it, or no addresses are free.
        """
        namespace = folder / "netns"
        namespace.touch()
        with exclusive(cache_root().with_name(LOCK)):
            machine, node = _pick_addresses()
            network = cls(
                namespace=str(namespace),
                node_address=node,
                machine_address=machine,
                interface=interface_name(box_id),
            )
            network._set_up()
        (folder / "network.json").write_text(json.dumps(asdict(network)))
        return network

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the network that was created in `folder`."""
        return cls(**json.loads((folder / "network.json").read_text()))

    def _set_up(self) -> None:
        _run("unshare", f"--net={self.namespace}", "true")
        end = ("peer", "name", NODE_INTERFACE, "netns", self.namespace)
        _run("ip", "link", "add", self.interface, "type", "veth", *end)
        _run(
            "ip", "address", "add", f"{self.machine_address}/{CABLE_PREFIX}", "dev", self.interface
        )
        _run("ip", "link", "set", self.interface, "up")
        within = (*self.enter, "ip")
        address = f"{self.node_address}/{CABLE_PREFIX}"
        _run(*within, "address", "add", address, "dev", NODE_INTERFACE)
        _run(*within, "link", "set", "lo", "up")
        _run(*within, "link", "set", NODE_INTERFACE, "up")
        # Only so that a route exists: iptables redirects such packets before they leave.
        _run(*within, "route", "add", SERVICE_ADDRESSES, "dev", NODE_INTERFACE)
        _run(*self.enter, "sh", "-c", FORWARD)


def _pick_addresses() -> tuple[str, str]:
    """Return the addresses of the machine and the node, in a network that is free here."""
    taken = [_parse(line) for line in _run("ip", "-4", "route", "show", "table", "all")]
    for within in RANGES:
        for cable in ipaddress.ip_network(within).subnets(new_prefix=CABLE_PREFIX):
            if not any(other is not None and cable.overlaps(other) for other in taken):
                machine, node = cable.hosts()
                return str(machine), str(node)
    raise BoxError(f"a full node needs four free addresses of {' or '.join(RANGES)}, found none")


def _parse(route: str) -> ipaddress.IPv4Network | None:
    """Return the destination in a line of `ip route`; None for a default route."""
    # A word for the kind of route, such as `local`, may precede the destination.
    destination = next((word for word in route.split()[:2] if word[0].isdigit()), None)
    if destination is None or "default" in route.split()[:2]:
        return None
    return ipaddress.IPv4Network(destination, strict=False)


def _run(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BoxError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def group_name(box_id: str) -> str:
    """Return the name of the control group, in each hierarchy, of a box's pods."""
    return f"lastmile-{box_id}"


def interface_name(box_id: str) -> str:
    """Return the name of the machine's interface to a box."""
    return f"lastmile{box_id[:INTERFACE_CHARACTERS]}"


def create_groups(box_id: str) -> None:
    """Make the control group of a box's pods in every hierarchy."""
    if (GROUPS / "cgroup.controllers").exists():  # version 2: one hierarchy
        for controller in (GROUPS / "cgroup.controllers").read_text().split():
            with suppress(OSError):  # some cannot be delegated, and no pod needs them
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
        # Lazily: no process of the box uses it any more, and the files in it must not be deleted.
        subprocess.run(["umount", "--lazy", mount], check=True)
    for path in find_groups(box_id):
        _remove_group(path)


def find_mounts(folder: Path) -> list[str]:
    """Return the mounts below a box's folder, the latest first."""
    mounts = (line.split()[4] for line in MOUNTS.read_bytes().splitlines())
    # proc(5): a space, or another character that would end the field, is an octal number (\040).
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
    """Yield where the box's group may be: version 1 has a folder for each controller."""
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
    """Remove one group, which works once the kernel has released its processes."""
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
