"""Evaluate NetworkPolicies as Kubernetes' documentation describes.

For clusters whose CNI enforces nothing. Policies are additive: a pod that none selects is open, one
that some select takes what any of them allows (Kubernetes docs, «Network Policies»).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A pod, or with no namespace somebody outside the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ip: str = "192.0.2.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Policies, and the labels of each namespace."""

    policies: Sequence[Document]
    namespaces: Mapping[str, Mapping[str, str]]

    def lets(self, source: Place, target: Place, port: int, protocol: str = "TCP") -> bool:
        """Return whether a connection from one place may reach a port of another."""
        asked = (port, protocol)
        comes = self._allows("Ingress", target, source, asked)
        return comes and self._allows("Egress", source, target, asked)

    def _allows(self, direction: str, pod: Place, other: Place, asked: tuple[int, str]) -> bool:
        """Return whether a pod's policies of one direction allow traffic with another place."""
        selecting = [policy for policy in self._find(pod) if direction in _types(policy)]
        side = {"Ingress": "from", "Egress": "to"}[direction]
        rules = [r for policy in selecting for r in policy["spec"].get(direction.lower()) or ()]
        return not selecting or any(
            _has_port(rule.get("ports"), asked)
            and (not rule.get(side) or any(self._is(p, other, pod) for p in rule[side]))
            for rule in rules
        )

    def _find(self, pod: Place) -> Iterator[Document]:
        for policy in self.policies:
            is_near = pod.namespace == policy["metadata"]["namespace"]
            if is_near and _selects(policy["spec"]["podSelector"], pod.labels):
                yield policy

    def _is(self, peer: Document, place: Place, pod: Place) -> bool:
        """Return whether a rule's peer is a place; by default in the pod's own namespace."""
        if "ipBlock" in peer:
            return _is_in(peer["ipBlock"], place.ip)
        if not place.namespace:
            return False
        selector = peer.get("namespaceSelector")
        is_near = place.namespace == pod.namespace
        if selector is not None:
            is_near = _selects(selector, self.namespaces[place.namespace])
        return is_near and _selects(peer.get("podSelector") or {}, place.labels)


def _types(policy: Document) -> Sequence[str]:
    """The API server always writes them."""
    types: Sequence[str] = policy["spec"]["policyTypes"]
    return types


def _selects(selector: Document, labels: Mapping[str, str]) -> bool:
    wanted = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or ()
    return wanted <= labels.items() and all(_holds(each, labels) for each in expressions)


def _holds(expression: Document, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _is_in(block: Document, ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    inside = [block["cidr"]], block.get("except") or ()
    among, apart = ([address in ipaddress.ip_network(cidr) for cidr in each] for each in inside)
    return any(among) and not any(apart)


def _has_port(ports: Sequence[Document] | None, asked: tuple[int, str]) -> bool:
    """No ports: all."""
    number, protocol = asked
    for port in ports or ():
        first = port.get("port", 0)
        if not isinstance(first, int):
            raise NotImplementedError(f"a port by name: {first!r}")
        last = port.get("endPort", first) if first else 65535
        if port.get("protocol", "TCP") == protocol and first <= number <= last:
            return True
    return not ports
