"""Reads the constants of the language: numbers, dates and timestamps.

Used by `parser` for literals and by `expressions.coercion` for strings that stand next to a date or
timestamp. Owns which spellings are accepted; every function raises ValueError with a message for
the user.
"""

from __future__ import annotations

import datetime as dt
import math
import re

MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1
MAX_UINT64 = 2**64 - 1

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(
    r"""
    \d{4}-\d{2}-\d{2}
    (?: [ T] \d{2}:\d{2} (?: :\d{2} (?:\.\d{1,6})? )? (?:Z|[+-]\d{2}:\d{2})? )?
    """,
    re.VERBOSE,
)


def parse_number(digits: str) -> int | float:
    """Read a number: an int without point and exponent, a float with one."""
    if digits.lstrip("-").isdecimal():
        return _parse_integer(digits)
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"a number is at most 1.8e308, got {digits}; write a smaller one")
    return value


def _parse_integer(digits: str) -> int:
    # The length is checked first: int() of thousands of digits is slow and bounded by Python.
    value = int(digits) if len(digits) <= len(str(MIN_INT64)) else None
    if value is None or not MIN_INT64 <= value <= MAX_UINT64:
        raise ValueError(
            f"an integer lies from {MIN_INT64} to {MAX_UINT64}, got {digits}; write a float"
        )
    return value


def parse_date(text: str) -> dt.date:
    """Read '2026-01-31'."""
    if _DATE.fullmatch(text):
        try:
            return dt.date.fromisoformat(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is no day of the calendar ({error})") from error
    raise ValueError(f"a date is written '2026-01-31', got {text!r}")


def parse_timestamp(text: str) -> dt.datetime:
    """Read '2026-01-31 12:00:00', with up to six digits of a second and an optional offset."""
    if _TIMESTAMP.fullmatch(text):
        try:
            return dt.datetime.fromisoformat(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is no time of the calendar ({error})") from error
    raise ValueError(
        "a timestamp is written '2026-01-31 12:00:00', with at most six digits of a second, got "
        f"{text!r}"
    )


def parse_time(text: str) -> dt.date | dt.datetime:
    """Read a string as a date if it has no time of day, else as a timestamp."""
    return parse_date(text) if len(text) <= len("2026-01-31") else parse_timestamp(text)
