"""Picks the loopback ports of a box; `startup.py` notices a port that was lost meanwhile."""

import random
import socket
from dataclasses import fields
from pathlib import Path

from tools.cluster.components import HOST, Ports
from tools.cluster.errors import BoxError

LOWEST_PORT = 10_240  # clear of the well-known services, those of Kubernetes (10250…) aside
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FALLBACK_EPHEMERAL = 32_768  # Linux's default lower end
ATTEMPTS = 1_000


def pick_ports() -> Ports:
    """Return ports that nobody listens on just now.

    Taken at random from below the ports that the kernel gives to outgoing connections: a port that
    it proposes itself goes to the next client as soon as it is free.
    """
    highest = _first_ephemeral() - 1
    taken: set[int] = set()
    picker = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = picker.randint(min(LOWEST_PORT, highest // 2), highest)
        if port not in taken and _is_free(port):
            taken.add(port)
        if len(taken) == len(fields(Ports)):
            return Ports(**dict(zip((field.name for field in fields(Ports)), taken, strict=True)))
    raise BoxError(f"no {len(fields(Ports))} free ports below {highest} in {ATTEMPTS} attempts")


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        return FALLBACK_EPHEMERAL


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
