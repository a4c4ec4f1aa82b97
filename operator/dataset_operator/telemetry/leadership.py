"""The operator's leadership, as probes and metrics need it."""

from __future__ import annotations

from typing import Protocol


class Leadership(Protocol):
    """Leadership of one of several operators; `election.candidate` implements it."""

    @property
    def is_leading(self) -> bool:
        """Return whether it acts."""

    def find_staleness(self) -> str | None:
        """Return why its standing by counts as dead; None while it is alive."""


class Alone:
    """The standing of an operator that asks nobody: it acts."""

    is_leading = True

    def find_staleness(self) -> str | None:
        """See Leadership."""
        return None
