"""A page of tiles, charts over time, facts and a table, for results other than runs and profiles.

It owns the models of such a page and its rendering. The caller gives all texts and numbers, such as
`lastmile simulate` through the program; the style is that of reports.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Literal, Self

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from pipeline_runtime.config.texts.distribution import DISTRIBUTION
from pipeline_runtime.report.drawing.lines import LinesPlot, TimeLine, draw_lines
from pipeline_runtime.report.templating import build_environment

_TEMPLATE = "sheet.html.j2"
# Colours of the style sheet, for lines in their order; the first is for the page's subject.
COLOURS = ("--accent", "--second", "--stage-4", "--stage-3", "--stage-5")


class SheetModel(BaseModel):
    """A part of the page; unknown fields are refused, since the page would not show them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class Tile(SheetModel):
    """A headline number."""

    title: str
    value: str
    exact: str = ""


class Advice(SheetModel):
    """A change that is worth making."""

    field: str
    text: str


class Fact(SheetModel):
    """A title and a sentence."""

    title: str
    text: str


class Line(SheetModel):
    """Values over seconds, each since the one before it."""

    name: str
    seconds: Annotated[tuple[float, ...], Field(min_length=1)]
    values: tuple[float, ...]
    is_strong: bool = False
    is_dashed: bool = False

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.seconds) != len(self.values):
            raise ValueError(f"{len(self.seconds)} seconds, {len(self.values)} values")
        return self


class Chart(SheetModel):
    """Lines over time; `name` makes its ids unique in the page."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z-]+$")]
    title: str
    unit: Literal["count", "share"]
    lines: Annotated[tuple[Line, ...], Field(min_length=1, max_length=len(COLOURS))]


class Table(SheetModel):
    """Cells as text; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Sheet(SheetModel):
    """All of the page."""

    title: str
    badge: str
    lead: str
    summary: str
    warnings: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()
    advice: tuple[Advice, ...] = ()
    charts: tuple[Chart, ...] = ()
    table: Table
    facts: tuple[Fact, ...] = ()
    footer: str = ""


def build_sheet(sheet: Sheet) -> str:
    """Build a page that is a single file and needs no network."""
    return (
        build_environment()
        .get_template(_TEMPLATE)
        .render(
            sheet=sheet,
            version=importlib.metadata.version(DISTRIBUTION),
            # `_draw` escapes the user's text in them, the label.
            charts=[(chart, Markup(_draw(chart)), COLOURS) for chart in sheet.charts],
        )
    )


def _draw(chart: Chart) -> str:
    lines = tuple(
        TimeLine(
            seconds=line.seconds,
            values=line.values,
            colour=colour,
            is_strong=line.is_strong,
            is_dashed=line.is_dashed,
        )
        for line, colour in zip(chart.lines, COLOURS, strict=False)
    )
    names = ", ".join(line.name for line in chart.lines)
    label = f"{chart.title} over time: {names}"
    plot = LinesPlot(name=chart.name, label=label, lines=lines, is_share=chart.unit == "share")
    return draw_lines(plot)
