"""Draws a dashboard's JSON as a page, for the docs: Lastmile's own picture of it, not Grafana's.

The caller has sent Grafana's queries to Prometheus. This module draws the answers as lines, large
numbers and tables on Grafana's grid. It supports the kinds of panels of `panels.py` only.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

LABEL = "drawn by Lastmile's renderer, not Grafana"
# The series that Prometheus returned, by a panel's title and a query's letter.
Answers = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
_COLOURS = ("#3274d9", "#56a64b", "#e0b400", "#e02f44", "#8f3bb8", "#ff780a", "#37872d", "#0a437c")
_WORDS = {"green": "#37872d", "yellow": "#b58900", "orange": "#d9650d", "red": "#c4162a"}
# Sizes of a drawing: a column of the grid, the height, and the margins below and left for axes.
_COLUMN, _HEIGHT, _BOTTOM, _LEFT = 62.0, 158.0, 16.0, 62.0
_MANY_LINES = 8  # in a legend
_STYLE = """
body { font: 13px/1.35 system-ui, sans-serif; margin: 12px; color: #1b1f24; background: #f4f5f5; }
h1 { font-size: 18px; margin: 0; } p { margin: 2px 0 10px; color: #57606a; }
main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 26px; gap: 4px 6px; }
h2 { font-size: 13px; margin: 4px 0 0; }
section { background: #fff; border: 1px solid #d5d8db; border-radius: 3px; padding: 4px 8px;
  overflow: hidden; } h3 { font-size: 12px; margin: 0 0 2px; font-weight: 600; }
.stat { font-size: 26px; text-align: center; margin-top: 12px; }
svg { width: 100%; height: calc(100% - 44px); display: block; }
svg text { font-size: 11px; fill: #57606a; }
.legend { font-size: 11px; white-space: nowrap; } .legend span { margin-right: 9px; }
i { display: inline-block; width: 10px; height: 3px; margin-right: 4px; vertical-align: middle; }
table { width: 100%; border-collapse: collapse; } td { border-top: 1px solid #e3e5e7; }
td:last-child { text-align: right; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A mark: its time in Unix seconds, and its text."""

    time: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Time range and markers that all pictures over time share."""

    first: float
    last: float
    moments: Sequence[Moment]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Position of a moment and a value in a drawing."""

    frame: _Frame
    width: float
    bottom: float
    top: float

    def x(self, time: float) -> float:
        span = (self.frame.last - self.frame.first) or 1.0
        return _LEFT + (self.width - _LEFT) * (time - self.frame.first) / span

    def y(self, value: float) -> float:
        share = (value - self.bottom) / (self.top - self.bottom)
        return (_HEIGHT - _BOTTOM) * (1 - 0.94 * share)


def draw_dashboard(document: Mapping[str, Any], answers: Answers, moments: Sequence[Moment]) -> str:
    """Draw a dashboard as a page without scripts.

    Args:
        document: of deploy/grafana.
        moments: marks in every picture over time.
    """
    known = [series["values"] for found in answers.values() for series in found]
    times = [float(time) for values in known for time, _ in values] or [0.0]
    frame = _Frame(first=min(times), last=max(times), moments=moments)
    parts = "\n".join(_draw_panel(panel, answers, frame) for panel in document["panels"])
    title = html.escape(document["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{html.escape(LABEL)}, of a run of this "
        f"project's tests; the metrics of GPUs are invented</p><main>{parts}</main></html>"
    )


def _draw_panel(panel: Mapping[str, Any], answers: Answers, frame: _Frame) -> str:
    grid = panel["gridPos"]
    place = (
        f"grid-column: {grid['x'] + 1} / span {grid['w']}; "
        f"grid-row: {grid['y'] + 1} / span {grid['h']}"
    )
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f'<h2 style="{place}">{title}</h2>'
    lines = list(_read_lines(panel, answers))
    draw: dict[str, Callable[[], str]] = {
        "stat": lambda: _draw_stat(panel, lines),
        "table": lambda: _draw_table(panel, lines),
        "timeseries": lambda: _draw_lines(panel, lines, frame),
    }
    inner = draw[panel["type"]]() if lines else '<div class="stat">No data</div>'
    return f'<section style="{place}"><h3>{title}</h3>{inner}</section>'


def _read_lines(panel: Mapping[str, Any], answers: Answers) -> Iterator[_Line]:
    for target in panel["targets"]:
        for series in answers.get((panel["title"], target["refId"]), ()):
            values = ((float(time), float(value)) for time, value in series["values"])
            points = tuple(point for point in values if math.isfinite(point[1]))
            if points:
                yield _Line(
                    name=name_series(target["legendFormat"], series["metric"]), points=points
                )


def name_series(legend: str, labels: Mapping[str, str]) -> str:
    """Return the legend with the values of its {{labels}}."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend)


def format_value(value: float, unit: str) -> str:
    """Format a number roughly as Grafana shows it, so not with `pipeline_runtime.formatting`."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "bytes":
        return _scale(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    if unit == "s" and abs(value) >= 60:
        minutes = value / 60
        return f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.1f} min"
    if unit == "s":
        return f"{value:.3g} s" if abs(value) >= 1 or not value else f"{1000 * value:.3g} ms"
    short = _scale(value, 1000, ("", "k", "M", "G", "T"))
    after = {"rowsps": "/s", "ops": "/s", "reqps": "/s"}
    return short + after.get(unit, "")


def _scale(value: float, base: int, units: Sequence[str]) -> str:
    power = 0
    while abs(value) >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{value:.3g} {units[power]}".strip()


def _unit(panel: Mapping[str, Any]) -> str:
    unit: str = panel["fieldConfig"]["defaults"]["unit"]
    return unit


def _draw_stat(panel: Mapping[str, Any], lines: Sequence[_Line]) -> str:
    # The latest value: a phase that has ended reports no more values.
    line = max(lines, key=lambda line: line.points[-1][0])
    value = line.points[-1][1]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    colour = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    is_name = panel["options"]["textMode"] == "name"
    text = line.name if is_name else format_value(value, _unit(panel))
    return f'<div class="stat" style="color: {_WORDS[colour[-1]]}">{html.escape(text)}</div>'


def _draw_table(panel: Mapping[str, Any], lines: Sequence[_Line]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(line.name)}"
        f"<td>{html.escape(format_value(line.points[-1][1], _unit(panel)))}"
        for line in lines
    )
    return f"<table>{rows}</table>"


def _draw_lines(panel: Mapping[str, Any], lines: Sequence[_Line], frame: _Frame) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    is_stack = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    lines = _stack(lines) if is_stack else lines
    values = [value for line in lines for _, value in line.points]
    bottom = min(0.0, *values) if "min" in defaults else min(values)
    place = _Place(
        frame=frame,
        width=_COLUMN * panel["gridPos"]["w"],
        bottom=bottom,
        top=max(values) if max(values) > bottom else bottom + 1.0,
    )
    drawn = [
        _draw_line(line, colour, place, is_filled=is_stack)
        for line, colour in zip(lines, cycle(_COLOURS), strict=False)
    ]
    # The highest of a stack is drawn first, so that each is seen below it.
    parts = [_draw_axes(place, _unit(panel)), *reversed(drawn), *_draw_moments(place)]
    box = f'viewBox="0 0 {place.width:.0f} {_HEIGHT:.0f}"'
    return f'<svg role="img" {box}>{"".join(parts)}</svg>{_draw_legend(lines)}'


def _stack(lines: Sequence[_Line]) -> list[_Line]:
    """Stack each series on the previous ones; a missing moment counts as 0."""
    below: dict[float, float] = {}
    stacked = []
    for line in lines:
        for time, value in line.points:
            below[time] = below.get(time, 0.0) + value
        points = tuple((time, below[time]) for time, _ in line.points)
        stacked.append(_Line(name=line.name, points=points))
    return stacked


def _draw_line(line: _Line, colour: str, place: _Place, *, is_filled: bool) -> str:
    points = [f"{place.x(time):.1f},{place.y(value):.1f}" for time, value in line.points]
    fill = "none"
    if is_filled:
        floor = place.y(place.bottom)
        ends = line.points[-1][0], line.points[0][0]
        points += [f"{place.x(time):.1f},{floor:.1f}" for time in ends]
        fill = colour
    style = f'stroke="{colour}" stroke-width="1.5" fill="{fill}" fill-opacity="1"'
    return f'<polyline points="{" ".join(points)}" {style}/>'


def _draw_moments(place: _Place) -> Iterator[str]:
    for moment in place.frame.moments:
        if place.frame.first <= moment.time <= place.frame.last:
            path = f"M{place.x(moment.time):.1f},0V{_HEIGHT - _BOTTOM}"
            style = 'stroke="#3274d9" stroke-dasharray="3 3"'
            yield f'<path d="{path}" {style}><title>{html.escape(moment.text)}</title></path>'


def _draw_axes(place: _Place, unit: str) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        value = place.bottom + share * (place.top - place.bottom)
        y = place.y(value)
        parts.append(f'<path d="M{_LEFT},{y:.1f}H{place.width}" stroke="#e3e5e7"/>')
        label = html.escape(format_value(value, unit))
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    minutes = (place.frame.last - place.frame.first) / 60
    below = _HEIGHT - 3
    parts.append(f'<text x="{_LEFT}" y="{below}">0</text>')
    end = f'<text x="{place.width}" y="{below}" text-anchor="end">{minutes:.1f} min</text>'
    return "".join([*parts, end])


def _draw_legend(lines: Sequence[_Line]) -> str:
    names = "".join(
        f'<span><i style="background: {colour}"></i>{html.escape(line.name)}</span>'
        for line, colour in zip(lines[:_MANY_LINES], cycle(_COLOURS), strict=False)
    )
    return f'<div class="legend">{names}</div>'
