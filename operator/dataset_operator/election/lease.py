"""A coordination.k8s.io Lease, as client-go's electors read and write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

LEASE = "Lease"
_API_VERSION = "coordination.k8s.io/v1"
_TICK = timedelta(microseconds=1)  # the finest that a MicroTime tells apart
# Of a released lease, as client-go leaves it: whoever is slow to see that waits no longer.
_RELEASED_SECONDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The current leader, and since when it leads.

    Attributes:
        holder: the identity of who leads; "": nobody.
        duration_seconds: for how long others wait after they saw the last renewal; 0: not said.
        acquired: by the wall clock of who leads.
        renewed: the same, later than the renewal before by at least a microsecond.
        transitions: how often another took it.
        metadata: of the object, with the resourceVersion that a write must meet; none: not made.
    """

    holder: str
    duration_seconds: int
    acquired: datetime
    renewed: datetime
    transitions: int
    metadata: Mapping[str, Any]

    def is_renewal_of(self, other: Lease) -> bool:
        """Return whether its holder wrote it after `other`; edits of metadata do not count."""
        mine = (self.holder, self.acquired, self.renewed, self.transitions)
        return mine != (other.holder, other.acquired, other.renewed, other.transitions)

    def renew(self, wall: datetime) -> Lease:
        """The lease renewed, though the wall clock went back or stands still."""
        return replace(self, renewed=max(wall, self.renewed + _TICK))

    def hand_to(self, holder: str, duration_seconds: int, wall: datetime) -> Lease:
        """The lease taken by another."""
        return replace(
            self.renew(wall),
            holder=holder,
            duration_seconds=duration_seconds,
            acquired=wall,
            transitions=self.transitions + 1,
        )

    def release(self, wall: datetime) -> Lease:
        """The lease that nobody holds."""
        return replace(self.renew(wall), holder="", duration_seconds=_RELEASED_SECONDS)


def build_first(name: str, namespace: str, holder: str, seconds: int, wall: datetime) -> Lease:
    """The lease that is not there yet."""
    return Lease(
        holder=holder,
        duration_seconds=seconds,
        acquired=wall,
        renewed=wall,
        transitions=0,
        metadata={"name": name, "namespace": namespace},
    )


def parse_lease(document: Mapping[str, Any]) -> Lease:
    """Parse a lease from the API server; absent fields mean that nobody holds it."""
    spec = document.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration_seconds=spec.get("leaseDurationSeconds") or 0,
        acquired=_parse_time(spec.get("acquireTime")),
        renewed=_parse_time(spec.get("renewTime")),
        transitions=spec.get("leaseTransitions") or 0,
        metadata=document["metadata"],
    )


def build_document(lease: Lease) -> dict[str, Any]:
    """The whole object."""
    return {
        "apiVersion": _API_VERSION,
        "kind": LEASE,
        "metadata": dict(lease.metadata),
        "spec": {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": lease.duration_seconds,
            "acquireTime": _format_time(lease.acquired),
            "renewTime": _format_time(lease.renewed),
            "leaseTransitions": lease.transitions,
        },
    }


def _parse_time(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)


def _format_time(moment: datetime) -> str:
    """Format a time as Kubernetes' MicroTime, which has all six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
