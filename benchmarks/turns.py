"""In which order what is compared is measured: in turn, and another first each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Sequence[T], index: int) -> list[T]:
    """All items, beginning with that of round `index`: nobody always comes first."""
    first = index % len(items)
    return [*items[first:], *items[:first]]
