"""Cells: the values of each arm, metric and round under one setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from benchmarks.harness.statistics import Estimate, estimate, estimate_ratio, rounded

Document = dict[str, Any]
Values = dict[str, list[float]]


@dataclass(kw_only=True)
class Cell:
    """The measurements of a cell.

    Attributes:
        base: arm that the others are compared with.
        arms: for each arm and metric one value per round.
        x: size on the axis of the picture, if sizes are what the cells differ in.
        facts: everything else that was found, such as a checksum or rounds that were set aside.
        ratios: ratios to the base with bounds, for each arm and metric, of results from a time when
            values of the rounds were not kept. `arms` then has the least, median and largest value.
    """

    name: str
    base: str
    arms: dict[str, Values]
    x: float | None = None
    facts: Document = field(default_factory=dict)
    ratios: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)

    def value(self, arm: str, metric: str) -> Estimate | None:
        """Return the median of a metric with bounds, or None if the arm does not have it."""
        values = self.arms.get(arm, {}).get(metric)
        if not values:
            return None
        if self.ratios and len(values) > 1:
            return Estimate(sorted(values)[len(values) // 2], min(values), max(values))
        return estimate(values)

    def ratio(self, arm: str, metric: str) -> Estimate | None:
        """Return an arm's metric over that of the base, or None if either is missing."""
        if self.ratios:
            kept = self.ratios.get(arm, {}).get(metric)
            return None if kept is None or kept[0] is None else Estimate(kept[0], *kept[1:])
        mine, others = (self.arms.get(a, {}).get(metric) for a in (arm, self.base))
        return estimate_ratio(mine, others) if mine and others and min(others) > 0 else None

    def to_json(self) -> Document:
        """Return the cell as an entry of the results, without what is empty."""
        arms = {
            arm: {metric: [rounded(v) for v in values] for metric, values in found.items()}
            for arm, found in self.arms.items()
        }
        entry: Document = {"cell": self.name, "base": self.base, "x": self.x, "arms": arms}
        entry |= {"facts": self.facts, "ratios": self.ratios}
        return {name: value for name, value in entry.items() if value not in (None, {})}

    @classmethod
    def from_json(cls, entry: Document) -> Self:
        """Return the cell of `to_json`."""
        return cls(name=entry["cell"], **{k: v for k, v in entry.items() if k != "cell"})
