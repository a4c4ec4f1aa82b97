"""Ports of this machine for what the tests start."""

import socket


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on just now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
