"""Numbers of a simulation as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_share(share: float) -> str:
    """0.1234 as `12 %`, below ten with a digit more; never 0 for what is not."""
    percent = 100.0 * share
    if percent < 0.1:
        return "<0.1 %" if percent > 0.0 else "0 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def format_time(seconds: float) -> str:
    """`45 s`, `12 min`, `5 h 12 min`, `3 d 04 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.2g} s"
    minutes = round(seconds / 60.0)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60:02d} h"


def format_short(value: float) -> str:
    """Three digits and a prefix: 1234567 as `1.23 M`."""
    for size, prefix in _PREFIXES:
        if value >= 0.9995 * size:
            return f"{_round3(value / size)} {prefix}"
    return _round3(value)


def _round3(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def format_stamp(text: str) -> str:
    """A time in ISO 8601 to the minute, as it is if it is none."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text


def format_workers(number: int | float) -> str:
    """`1 data worker`, `7 data workers`, `6.2 data workers`."""
    text = f"{number}" if isinstance(number, int) else f"{number:.3g}"
    return f"{text} data worker" if text == "1" else f"{text} data workers"
