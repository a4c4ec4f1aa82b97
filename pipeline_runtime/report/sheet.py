"""A page of tiles, charts over time, facts and a table, for what is no run and no profile.

Owned here: the models of such a page and its rendering. Who asks for one says every word and number
of it (`lastmile simulate`, through the program); the look is the report's.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Literal, Self

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from pipeline_runtime.config.texts.distribution import DISTRIBUTION
from pipeline_runtime.report.drawing.lines import LinesPlot, TimeLine, draw_lines

_TEMPLATE = "sheet.html.j2"
# Colours of the style sheet, for lines in their order: the first is what the page is about.
COLOURS = ("--accent", "--second", "--stage-4", "--stage-3", "--stage-5")


class SheetModel(BaseModel):
    """A part of the page; what is not known here is refused, since nobody would see it."""

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
    """A page of one file that asks nothing of any network."""
    environment = Environment(
        loader=PackageLoader("pipeline_runtime.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        sheet=sheet,
        version=importlib.metadata.version(DISTRIBUTION),
        # Their one text of the user's, the label, is escaped there.
        charts=[(chart, Markup(_draw(chart)), COLOURS) for chart in sheet.charts],
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
