"""Pauses before failed requests are retried: as long as the server asks, and spread at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Status codes of a server that is too busy or unavailable (RFC 9110, 10.2.3; RFC 6585, 4).
BUSY = frozenset({429, 503})
# A server may ask for any time, and tenants run some servers: nobody waits longer than this.
MAX_RETRY_AFTER_SECONDS = 60.0
_MAX_SPREAD = 0.5  # largest share of a pause that is added to it at random
_MAX_CHARS = 64  # longest header that is read: a number or a date


def spread(seconds: float, draw: Callable[[], float] = random.random) -> float:
    """Return a pause that is longer by a random share, so that clients do not retry together."""
    return seconds * (1.0 + _MAX_SPREAD * draw())


def parse_retry_after(status: int, headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a busy server asks to wait; None if it asks for nothing sensible."""
    text = headers.get("Retry-After", "")[:_MAX_CHARS].strip()
    if status not in BUSY or not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter for a year or a zone of many digits
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def bound_wait(seconds: float | None) -> float:
    """Return the seconds to wait, at most `MAX_RETRY_AFTER_SECONDS`, if a server asked for some."""
    return min(seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
