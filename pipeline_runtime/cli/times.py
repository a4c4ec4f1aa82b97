"""Times and ages on the command line: `2026-01-31`, `2026-01-31T08:00Z`, `90m`, `12h`, `30d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"([0-9]{1,6})([mhdw])")


def parse_age(text: str | None) -> timedelta | None:
    """Parse an age, such as `30d`. Raises BadParameter."""
    if text is None:
        return None
    found = _AGE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"must be a number with m, h, d or w, such as 30d, got {text!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def parse_moment(text: str | None) -> datetime | None:
    """Parse a date, a time, or an age before now; without a time zone, UTC. Raises BadParameter."""
    if text is None:
        return None
    if _AGE.fullmatch(text):
        age = parse_age(text)
        assert age is not None
        return datetime.now(UTC) - age
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"must be a date, such as 2026-01-31, or an age, such as 7d, got {text!r}"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
