"""The parts of a dashboard: rows of panels, each with its queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

# Names of the template variables; `$namespace` and the like in queries.
Variable = Literal["namespace", "experiment"]
# lines: over time. stack: on top of each other. stat: the latest, large. table: the latest, a row
# for each series.
Kind = Literal["lines", "stack", "stat", "table"]
# Grafana's names of units (packages/grafana-data, valueFormats): rowsps, ops and reqps are a
# second, percentunit is a share of 1, "" a number as it is.
Unit = Literal["", "short", "percentunit", "s", "bytes", "rowsps", "ops", "reqps"]
GRID_COLUMNS = 24  # of Grafana


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of Prometheus; `legend` names its series, with {{labels}}."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The colour of a number from this value on."""

    value: float
    colour: Literal["green", "yellow", "orange", "red"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture.

    Attributes:
        description: the meaning of the panel, and the reaction to it.
        top: the end of the axis; None: the largest value.
        from_zero: whether the axis begins at 0.
        shows_label: a stat shows the name of its series instead of its value.
        steps: colours by value; below the first it is green.
        width: of `GRID_COLUMNS`.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "lines"
    top: float | None = None
    from_zero: bool = True
    shows_label: bool = False
    steps: tuple[Step, ...] = ()
    width: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels that belong together, under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Marks in every picture over time, at the moments that `expr` returns in milliseconds.

    Attributes:
        title, text: with {{labels}}.
    """

    name: str
    expr: str
    title: str
    text: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard.

    Attributes:
        name: of its file, and of its address in Grafana.
        variables: that a reader chooses; of `experiment` one, of `namespace` alone any number.
    """

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return the panels of all rows."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def list_queries(self) -> Iterator[tuple[str, str]]:
        """List every expression, also of marks, with its purpose."""
        for panel in self.panels:
            for query in panel.queries:
                yield f"{panel.title}: {query.legend}".removesuffix(": "), query.expr
        for mark in self.marks:
            yield mark.name, mark.expr
