"""Format numbers for people: counts, rates, sizes, shares and durations.

Reports, profiles, the commands and the operator's simulations all round and choose units here. It
imports nothing of the project, so that the operator can use it too. A no-break space joins number
and unit, so that no line ends between them.
"""

from __future__ import annotations

import math

NO_BREAK_SPACE = "\u00a0"
NOTHING = "\u2013"

_SECONDS_PER_MINUTE = 60
_SECONDS_PER_HOUR = 3600
_SECONDS_PER_DAY = 86_400

# Below one in a thousand, 0.000x has more zeros than digits.
_SMALLEST_PLAIN = 1e-3

# There is a prefix up to here: 999 E.
_LARGEST_PREFIXED = 1e21
# A metric in full up to here: 999,999,999.
_LARGEST_WRITTEN_OUT = 1e9

_MAX_TICK_DECIMALS = 6
# 8,000 is as short as 8.0 k and easier to read.
_LARGEST_PLAIN_TICK = 10_000

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_count(value: int) -> str:
    """Separate thousands: 1048576 as 1,048,576."""
    return f"{value:,}"


def format_short(value: float) -> str:
    """Format three digits and an SI prefix: 1.05 M; without a prefix below 1000: 12.3, 0.0451."""
    if not math.isfinite(value):
        return _format_not_finite(value)
    if abs(value) >= _LARGEST_PREFIXED:
        return f"{value:.3g}"
    for size, prefix in _PREFIXES:
        # 999,999 is 1 M, not 1000 k.
        if abs(value) >= size * 0.9995:
            return f"{_round3(value / size)}{NO_BREAK_SPACE}{prefix}"
    return _round3(value)


def format_rate(value: float) -> str:
    """Format a number per second: 12345.6 as 12.3 k/s."""
    return _append_unit(format_short(value), "/s")


def format_bytes(value: int) -> str:
    """Format bytes in powers of 1000: 2800000000 as 2.8 GB."""
    return _append_unit(format_short(value), "B")


def format_percent(share: float) -> str:
    """Format a share of 1 in per cent: 0.1234 as 12.3 %; only exactly 0 and 1 as 0 % and 100 %."""
    if not math.isfinite(share):
        return NOTHING
    percent = 100 * share
    if 0 < percent < 0.1:
        return f"<0.1{NO_BREAK_SPACE}%"
    if 99.9 < percent < 100:
        return f">99.9{NO_BREAK_SPACE}%"
    return f"{percent:.1f}".removesuffix(".0") + f"{NO_BREAK_SPACE}%"


def format_duration(seconds: float) -> str:
    """Format seconds: 0.0421 as 42.1 ms, 12.34 as 12.3 s, 245 as 4 min 05 s, 7380 as 2 h 03 min."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"0{NO_BREAK_SPACE}s" if seconds == 0 else NOTHING
    if seconds < 1:
        return f"{_round3(1000 * seconds)}{NO_BREAK_SPACE}ms"
    if seconds < _SECONDS_PER_MINUTE - 0.05:
        return f"{seconds:.1f}".removesuffix(".0") + f"{NO_BREAK_SPACE}s"
    whole = round(seconds)
    if whole < _SECONDS_PER_HOUR:
        return _join_units(divmod(whole, _SECONDS_PER_MINUTE), ("min", "s"))
    if whole < _SECONDS_PER_DAY:
        return _join_units(divmod(whole // _SECONDS_PER_MINUTE, 60), ("h", "min"))
    return _join_units(divmod(whole // _SECONDS_PER_HOUR, 24), ("d", "h"))


def format_age_seconds(seconds: float) -> str:
    """Format a duration as kubectl prints ages, in one unit: `90s`, `45m`, `20h`, `4d`."""
    whole = max(0, int(seconds))
    if whole < 2 * _SECONDS_PER_MINUTE:
        return f"{whole}s"
    if whole < 2 * _SECONDS_PER_HOUR:
        return f"{whole // _SECONDS_PER_MINUTE}m"
    if whole < 2 * _SECONDS_PER_DAY:
        return f"{whole // _SECONDS_PER_HOUR}h"
    return f"{whole // _SECONDS_PER_DAY}d"


def format_metric(value: float) -> str:
    """Format a metric to four significant digits: 0.78123 as 0.7812, 1.2e-5 as 1.2e-05."""
    if not math.isfinite(value):
        return _format_not_finite(value)
    if value and abs(value) < _SMALLEST_PLAIN:
        return f"{value:.3g}"
    if abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < _LARGEST_WRITTEN_OUT else f"{value:.4g}"


def format_tick(value: float, *, largest: float, gap: float) -> str:
    """Format a tick of an axis whose largest tick is `largest` and whose ticks are `gap` apart."""
    if not value or not gap or not _SMALLEST_PLAIN <= largest < _LARGEST_PREFIXED:
        return f"{value:.3g}"
    prefixes = _PREFIXES if largest >= _LARGEST_PLAIN_TICK else ()
    size, prefix = next(((s, p) for s, p in prefixes if largest >= s), (1.0, ""))
    scaled_gap = gap / size
    # A gap of 0.25 needs two decimals, one of 0.2 only one; 1e-6 forgives the binary fraction.
    decimals = next(
        (n for n in range(_MAX_TICK_DECIMALS) if abs(_off_grid(scaled_gap, n)) < 1e-6),
        _MAX_TICK_DECIMALS,
    )
    return f"{value / size:,.{decimals}f}" + (f"{NO_BREAK_SPACE}{prefix}" if prefix else "")


def plain_spaces(text: str) -> str:
    """Replace no-break spaces, for a terminal."""
    return text.replace(NO_BREAK_SPACE, " ")


def _append_unit(text: str, unit: str) -> str:
    """Append a unit to a number, which may have a prefix already."""
    return text + unit if NO_BREAK_SPACE in text else f"{text}{NO_BREAK_SPACE}{unit}"


def _off_grid(value: float, decimals: int) -> float:
    """Return the rounding error of `value` at that many decimals, in units of the last decimal."""
    scaled: float = value * 10**decimals
    return scaled - round(scaled)


def _join_units(amounts: tuple[int, int], units: tuple[str, str]) -> str:
    big, small = amounts
    return NO_BREAK_SPACE.join((str(big), units[0], f"{small:02d}", units[1]))


def _format_not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "∞" if value > 0 else "\u2212∞"


def _round3(value: float) -> str:
    """Format three significant digits without trailing zeros; no exponent from 0.001 to 1000."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
