"""Whether this operator acts or stands by, as far as probes and metrics must know."""

from __future__ import annotations

from typing import Protocol


class Leadership(Protocol):
    """Of one operator among several; `election.candidate` is one."""

    @property
    def is_leading(self) -> bool:
        """Whether it acts."""

    def find_staleness(self) -> str | None:
        """Why its standing by counts as dead; None while it is alive."""


class Alone:
    """The standing of an operator that asks nobody: it acts."""

    is_leading = True

    def find_staleness(self) -> str | None:
        """See Leadership."""
        return None
