"""Numbers that a manifest has as integers or as decimal texts: `keepPercent: 5` or `"0.5"`.

The conventions of the Kubernetes API allow no floats, which clients write back in another form, and
no integers beyond 53 bits, which many JSON readers round. Steps compute with `parse_percent` and
`parse_decimal`, so that no digit of a text is lost.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator

from pipeline_runtime.config.base import MAX_SAFE_INTEGER, rule_error

# Digits after the point of a percentage: a millionth of a percent is a row in a hundred million.
_MAX_PERCENT_DIGITS = 6
_DIGITS = rf"[0-9]{{1,{_MAX_PERCENT_DIGITS}}}"
PERCENT_PATTERN = rf"^(100(\.0{{1,{_MAX_PERCENT_DIGITS}}})?|[0-9]{{1,2}}(\.{_DIGITS})?)$"
MAX_HOLDOUT_PERCENT = 50
# Above 0, and at most 50.
HOLDOUT_PATTERN = (
    rf"^(50(\.0{{1,{_MAX_PERCENT_DIGITS}}})?|([1-9]|[1-4][0-9])(\.{_DIGITS})?"
    rf"|0\.0{{0,{_MAX_PERCENT_DIGITS - 1}}}[1-9][0-9]{{0,{_MAX_PERCENT_DIGITS - 1}}})$"
)
# As that of a percentage. Samplers divide by it, so that 100 draws almost evenly.
MAX_TEMPERATURE = 100
# Exponents are short, since the value of 1e999999999 fills the memory. The longest numbers of Arrow
# have 76 digits.
NUMBER_PATTERN = r"^-?[0-9]{1,80}(\.[0-9]{1,80})?([eE][-+]?[0-9]{1,3})?$"
# Has the digits of every number that matches.
_EXACT = Context(prec=160)


def check_percent(value: int | str) -> int | str:
    """Return a percentage from 0 to 100 in its shortest form; an integer if it is one."""
    if _is_percent(value, PERCENT_PATTERN, lowest=0, highest=100):
        return _shorten(value)
    raise rule_error(
        f"must be a percentage from 0 to 100 with at most {_MAX_PERCENT_DIGITS} digits after the "
        f"point, got {_show(value)}; write it like 5 or '0.5'"
    )


def check_holdout_percent(value: int | str) -> int | str:
    """Return a percentage above 0 and at most 50 in its shortest form."""
    if _is_percent(value, HOLDOUT_PATTERN, lowest=1, highest=MAX_HOLDOUT_PERCENT):
        return _shorten(value)
    raise rule_error(
        f"must be a percentage above 0 and at most {MAX_HOLDOUT_PERCENT} with at most "
        f"{_MAX_PERCENT_DIGITS} digits after the point, got {_show(value)}; write it like 5 or "
        "'0.5'"
    )


def check_temperature(value: int | str) -> int | str:
    """Return a temperature from 0 to 100 in its shortest form."""
    if _is_percent(value, PERCENT_PATTERN, lowest=0, highest=MAX_TEMPERATURE):
        return _shorten(value)
    raise rule_error(
        f"must be a number from 0 to {MAX_TEMPERATURE} with at most {_MAX_PERCENT_DIGITS} digits "
        f"after the point, got {_show(value)}; write it like 1 or '0.7'"
    )


def _show(value: int | str) -> str:
    return repr(value[:80] if isinstance(value, str) else value)


def _is_percent(value: int | str, pattern: str, *, lowest: int, highest: int) -> bool:
    if isinstance(value, str):
        return re.fullmatch(pattern, value) is not None
    return lowest <= value <= highest


def _shorten(value: int | str) -> int | str:
    """Return 5 for "5.0" and "0.5" for "0.50": equal numbers have one run hash."""
    number = _EXACT.normalize(Decimal(value))
    is_whole = number == number.to_integral_value()
    return int(number) if is_whole and abs(number) <= MAX_SAFE_INTEGER else str(number)


def check_number(value: int | str) -> int | str:
    """Return a number in its shortest form. Refuse an integer that many JSON readers would round.

    A text that is no number is refused too.
    """
    if isinstance(value, str) and not is_number(value):
        raise rule_error(f"must be a number, got {value[:80]!r}; write it like 5 or '0.5'")
    _check_safe(value)
    return _shorten(value)


def check_constant(value: bool | int | str) -> bool | int | str:
    """Refuse an integer that many JSON readers would round."""
    _check_safe(value)
    return value


def _check_safe(value: bool | int | str) -> None:
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        raise rule_error(
            f"must be a text beyond {MAX_SAFE_INTEGER:,}, since many programs round such a number, "
            f"got {value!r:.40}; quote it"
        )


def is_number(text: str) -> bool:
    """Return whether a text is a decimal number."""
    return re.fullmatch(NUMBER_PATTERN, text) is not None


def parse_percent(value: int | str) -> Fraction:
    """Return a checked percentage as a number."""
    return Fraction(value)


def format_decimal(value: float) -> int | str:
    """Return a Python number as a manifest has it: an integer, or a text."""
    if isinstance(value, int):
        return value if abs(value) <= MAX_SAFE_INTEGER else str(value)
    number = Decimal(repr(float(value)))
    is_whole = number.is_finite() and number == number.to_integral_value()
    if is_whole and abs(number) <= MAX_SAFE_INTEGER:
        return int(number)
    return str(number)


KeepPercent = Annotated[int | str, AfterValidator(check_percent)]
HoldoutPercent = Annotated[int | str, AfterValidator(check_holdout_percent)]
Temperature = Annotated[int | str, AfterValidator(check_temperature)]
Number = Annotated[int | str, AfterValidator(check_number)]
Constant = Annotated[bool | int | str, AfterValidator(check_constant)]
