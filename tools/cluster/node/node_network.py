"""The network namespace of a full node, and the one cable from it to the machine.

Everything of the node runs in the namespace, so that its addresses, routes and iptables rules touch
none of the machine's. A pair of virtual interfaces joins the two, with an address of a range that
is kept for documentation (RFC 5737) at each end: what runs on the machine reaches the node's
address and nothing behind it. The namespace has no route to anywhere else.

The namespace is a mount in the box's folder, and lives as long as that or a process in it;
`remains.py` removes both, and the interfaces.
"""

import ipaddress
import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tools.cluster.components import SERVICE_ADDRESSES
from tools.cluster.errors import BoxError
from tools.cluster.node.remains import interface_name
from tools.go_tools import cache_root, exclusive

RANGES = ("198.51.100.0/24", "203.0.113.0/24")  # TEST-NET-2 and -3; -1 is met in the wild
CABLE_PREFIX = 30  # bits: a network of two addresses, the machine's and the node's
NODE_INTERFACE = "eth0"
LOCK = "networks"  # a folder in the cache: one at a time picks addresses
FORWARD = "echo 1 > /proc/sys/net/ipv4/ip_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A full node's network.

    Attributes:
        namespace: the file by which processes enter it.
        node_address: the node's address, of its servers and of pods in the node's network.
        machine_address: the machine's, as the node and its pods see it.
        interface: the machine's end of the cable.
    """

    namespace: str
    node_address: str
    machine_address: str
    interface: str

    @property
    def enter(self) -> tuple[str, ...]:
        """The command that starts a program in it, as the same process."""
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
        # Only so that there is a route: iptables sends them elsewhere before they leave.
        _run(*within, "route", "add", SERVICE_ADDRESSES, "dev", NODE_INTERFACE)
        _run(*self.enter, "sh", "-c", FORWARD)


def _pick_addresses() -> tuple[str, str]:
    """Return the addresses of the machine and the node, in a network that is nobody's here."""
    taken = [_parse(line) for line in _run("ip", "-4", "route", "show", "table", "all")]
    for within in RANGES:
        for cable in ipaddress.ip_network(within).subnets(new_prefix=CABLE_PREFIX):
            if not any(other is not None and cable.overlaps(other) for other in taken):
                machine, node = cable.hosts()
                return str(machine), str(node)
    raise BoxError(f"a full node needs four free addresses of {' or '.join(RANGES)}, found none")


def _parse(route: str) -> ipaddress.IPv4Network | None:
    """Return where a line of `ip route` leads; None for a default route, which is everywhere."""
    # Before the destination there may be a word for the kind of route, such as `local`.
    destination = next((word for word in route.split()[:2] if word[0].isdigit()), None)
    if destination is None or "default" in route.split()[:2]:
        return None
    return ipaddress.IPv4Network(destination, strict=False)


def _run(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BoxError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout.splitlines()
