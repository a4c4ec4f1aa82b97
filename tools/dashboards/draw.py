"""Draws a dashboard's JSON as a page, for the docs: Lastmile's own picture of it, not Grafana's.

What Grafana would ask of Prometheus has been asked by whoever calls; here it becomes lines, large
numbers and tables on Grafana's grid. It knows the panels that `build` makes and no others.
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
# Of a panel's title and a query's letter: the series that Prometheus gave, over time.
Answers = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
_COLOURS = ("#3274d9", "#56a64b", "#e0b400", "#e02f44", "#8f3bb8", "#ff780a", "#37872d", "#0a437c")
_WORDS = {"green": "#37872d", "yellow": "#b58900", "orange": "#d9650d", "red": "#c4162a"}
_WIDTH, _HEIGHT, _BOTTOM, _LEFT = 400.0, 150.0, 16.0, 44.0  # of a drawing
_MANY_LINES = 8  # of a legend
_STYLE = """
body { font: 13px/1.35 system-ui, sans-serif; margin: 12px; color: #1b1f24; background: #f4f5f5; }
h1 { font-size: 18px; margin: 0; } p { margin: 2px 0 10px; color: #57606a; }
main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 26px; gap: 4px 6px; }
h2 { font-size: 13px; margin: 4px 0 0; }
section { background: #fff; border: 1px solid #d5d8db; border-radius: 3px; padding: 4px 8px;
  overflow: hidden; } h3 { font-size: 12px; margin: 0 0 2px; font-weight: 600; }
.stat { font-size: 26px; text-align: center; margin-top: 12px; }
svg { width: 100%; height: calc(100% - 44px); display: block; }
svg text { font-size: 10px; fill: #57606a; }
.legend { font-size: 11px; white-space: nowrap; } .legend span { margin-right: 9px; }
i { display: inline-block; width: 10px; height: 3px; margin-right: 4px; vertical-align: middle; }
table { width: 100%; border-collapse: collapse; } td { border-top: 1px solid #e3e5e7; }
td:last-child { text-align: right; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A mark: Unix seconds, and what it says."""

    time: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    points: tuple[tuple[float, float], ...]


def draw_dashboard(document: Mapping[str, Any], answers: Answers, moments: Sequence[Moment]) -> str:
    """A page of its own, without scripts.

    Args:
        document: of deploy/grafana.
        moments: what is marked in every picture over time.
    """
    parts = "\n".join(_draw_panel(panel, answers, moments) for panel in document["panels"])
    title = html.escape(document["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{html.escape(LABEL)}, of a run of this "
        f"project's tests; what GPUs tell is made up there</p><main>{parts}</main></html>"
    )


def _draw_panel(panel: Mapping[str, Any], answers: Answers, moments: Sequence[Moment]) -> str:
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
        "timeseries": lambda: _draw_lines(panel, lines, moments),
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
    """The legend with its {{labels}} put in."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend)


def format_value(value: float, unit: str) -> str:
    """A number as Grafana would show it in that unit, about."""
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
    after = {"rowsps": " rows/s", "ops": " ops/s", "reqps": " req/s"}
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
    # The one that was told last: of a phase that is over nothing is told any more.
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


def _draw_lines(panel: Mapping[str, Any], lines: Sequence[_Line], moments: Sequence[Moment]) -> str:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    if custom.get("stacking", {}).get("mode") == "normal":
        lines = _stack(lines)
    times = [time for line in lines for time, _ in line.points]
    values = [value for line in lines for _, value in line.points]
    first, last = min(times), max(times)
    bottom = min(0.0, *values) if "min" in panel["fieldConfig"]["defaults"] else min(values)
    top = max(values)
    top = top if top > bottom else bottom + 1.0

    def place(time: float, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT) * (time - first) / ((last - first) or 1.0)
        y = (_HEIGHT - _BOTTOM) * (1 - (value - bottom) / (top - bottom) * 0.94)
        return f"{x:.1f},{y:.1f}"

    drawn = [_draw_axes(place, (first, last), (bottom, top), _unit(panel))]
    for moment in moments:
        if first <= moment.time <= last:
            x = place(moment.time, bottom).partition(",")[0]
            drawn.append(
                f'<path d="M{x},0V{_HEIGHT - _BOTTOM}" stroke="#3274d9" stroke-dasharray="3 3">'
                f"<title>{html.escape(moment.text)}</title></path>"
            )
    for line, colour in zip(lines, cycle(_COLOURS), strict=False):
        path = " ".join(place(*point) for point in line.points)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
    return f'<svg role="img" {box}>{"".join(drawn)}</svg>{_draw_legend(lines)}'


def _stack(lines: Sequence[_Line]) -> list[_Line]:
    """Each on top of those before it; a moment that one does not know counts as 0 there."""
    below: dict[float, float] = {}
    stacked = []
    for line in lines:
        for time, value in line.points:
            below[time] = below.get(time, 0.0) + value
        points = tuple((time, below[time]) for time, _ in line.points)
        stacked.append(_Line(name=line.name, points=points))
    return stacked


def _draw_axes(
    place: Callable[[float, float], str],
    times: tuple[float, float],
    values: tuple[float, float],
    unit: str,
) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        value = values[0] + share * (values[1] - values[0])
        x, _, y = place(times[0], value).partition(",")
        parts.append(f'<path d="M{x},{y}H{_WIDTH}" stroke="#e3e5e7"/>')
        label = html.escape(format_value(value, unit))
        parts.append(f'<text x="{_LEFT - 4}" y="{float(y) + 6}" text-anchor="end">{label}</text>')
    minutes = (times[1] - times[0]) / 60
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 3}">0</text>')
    end = f'<text x="{_WIDTH}" y="{_HEIGHT - 3}" text-anchor="end">{minutes:.1f} min</text>'
    return "".join([*parts, end])


def _draw_legend(lines: Sequence[_Line]) -> str:
    names = "".join(
        f'<span><i style="background: {colour}"></i>{html.escape(line.name)}</span>'
        for line, colour in zip(lines[:_MANY_LINES], cycle(_COLOURS), strict=False)
    )
    return f'<div class="legend">{names}</div>'
