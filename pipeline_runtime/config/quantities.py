"""Kubernetes quantities (`500m`, `8Gi`): how they are written, and which of two is larger."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator

from pipeline_runtime.config.base import rule_error

# apimachinery, pkg/api/resource/quantity.go; exponents are kept short so that no number explodes.
QUANTITY = re.compile(
    r"\+?(?P<number>\d{1,18}(\.\d{0,9})?|\.\d{1,9})"
    r"(?P<unit>[eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?",
    re.ASCII,
)
# What its 18 digits hold.
MAX_QUANTITY_INTEGER = 10**18 - 1
_DECIMAL_UNITS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_UNITS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(text: str | int) -> Decimal | None:
    """The number that a quantity stands for, None if it is not one."""
    match = QUANTITY.fullmatch(str(text))
    if not match:
        return None
    number, unit = Decimal(match["number"]), match["unit"] or ""
    if unit in _BINARY_UNITS:
        return number * Decimal(2 ** _BINARY_UNITS[unit])
    if unit in _DECIMAL_UNITS:
        return number.scaleb(_DECIMAL_UNITS[unit])
    return number.scaleb(int(unit[1:])) if unit else number


def check_quantity(value: str | int) -> str | int:
    if parse_quantity(value) is None:
        raise rule_error(
            f"must be a Kubernetes quantity, got {str(value)[:40]!r}; write it like 2, 500m or 8Gi"
        )
    return value


Quantity = Annotated[int | str, AfterValidator(check_quantity)]
