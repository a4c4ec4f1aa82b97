"""The functions of the expression language, by name.

One module a family; each names its functions in `FUNCTIONS`. `binder` looks them up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeline_runtime.expressions.functions import general, lists, numbers, text, times
from pipeline_runtime.expressions.functions.base import Function

_FAMILIES = (text, numbers, general, times, lists)

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {function.name: function for family in _FAMILIES for function in family.FUNCTIONS}
)

__all__ = ["FUNCTIONS", "Function"]
