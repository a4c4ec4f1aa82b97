"""Decide whether this process leads, from the lease it saw and the time, like client-go.

Wall clocks are never compared: a lease counts from the moment at which this process saw it renewed.
So the clocks may be set as they like, and may differ in speed by less than leaseDurationSeconds /
renewDeadlineSeconds (1.5): who leads counts its deadline from *before* it asked for the renewal,
who stands by counts the lease from *after* it saw it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from dataset_operator.election.lease import Lease, build_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The lease to hold and its times, named as client-go's.

    Attributes:
        duration_seconds: without a renewal for so long, another takes it.
        deadline_seconds: who leads acts for so long after the last renewal; less than the above.
        retry_seconds: from one try to the next.
    """

    name: str
    namespace: str
    duration_seconds: int
    deadline_seconds: int
    retry_seconds: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A lease to be written, and when that was proposed."""

    lease: Lease
    at: float


@dataclass(slots=True, kw_only=True)
class Elector:
    """One of those who would lead; every `now` is in seconds, by a clock that never stops.

    It leads once and not again: what has ended to lead ends.

    Attributes:
        identity: of this process, and of no other ever.
        seen: the lease as it last was.
        lost: why it leads no more; "" until then.
    """

    identity: str
    terms: Terms
    seen: Lease | None = None
    lost: str = ""
    _seen_at: float = field(default=0.0, init=False)
    _until: float | None = field(default=None, init=False)

    @property
    def is_leading(self) -> bool:
        """Return whether it has led since it took the lease; it may have to end all the same."""
        return self._until is not None

    def remaining_seconds(self, now: float) -> float:
        """Return the seconds for which it may act; 0 while it does not lead."""
        if self.lost or self._until is None:
            return 0.0
        return max(0.0, self._until - now)

    def may_act(self, now: float) -> bool:
        """Return whether it certainly leads; an end is final."""
        if self._until is not None and not self.lost and now >= self._until:
            self.lost = (
                f"it was not renewed for {self.terms.deadline_seconds} s (renewDeadlineSeconds)"
            )
        return self.remaining_seconds(now) > 0

    def see(self, lease: Lease | None, now: float) -> None:
        """Take in what the API server has, as its answer said at `now`."""
        if lease is None or self.seen is None or lease.is_renewal_of(self.seen):
            self._seen_at = now
        self.seen = lease
        if self.is_leading and not self.lost and (lease is None or lease.holder != self.identity):
            holder = (lease.holder if lease else "") or "nobody"
            self.lost = f"{holder} holds it"

    def propose(self, now: float, wall: datetime) -> Proposal | None:
        """Return the lease to write, renewed or taken over; None if another operator holds it.

        Args:
            wall: for people who look at the lease.
        """
        if self.lost or (self.is_leading and not self.may_act(now)):
            return None
        terms, seen = self.terms, self.seen
        if seen is None:
            lease = build_first(
                terms.name, terms.namespace, self.identity, terms.duration_seconds, wall
            )
        elif seen.holder == self.identity:
            lease = replace(seen.renew(wall), duration_seconds=terms.duration_seconds)
        elif self._is_held(seen, now):
            return None
        else:
            lease = seen.hand_to(self.identity, terms.duration_seconds, wall)
        return Proposal(lease=lease, at=now)

    def accept(self, proposal: Proposal, stored: Lease, now: float) -> None:
        """The API server took it; `stored` is what it made of it."""
        self.see(stored, now)
        self._until = proposal.at + self.terms.deadline_seconds

    def release(self, now: float, wall: datetime) -> Lease | None:
        """Return the lease to write when all work has ended; None if another operator holds it."""
        if self._until is None or now >= self._until:
            return None
        if self.seen is None or self.seen.holder != self.identity:
            return None
        self.lost = "it was released"
        return self.seen.release(wall)

    def _is_held(self, seen: Lease, now: float) -> bool:
        """Return whether another operator leads, within the duration that its lease promises."""
        seconds = seen.duration_seconds or self.terms.duration_seconds
        return bool(seen.holder) and now < self._seen_at + seconds
