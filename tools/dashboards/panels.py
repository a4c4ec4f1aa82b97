"""The parts of a dashboard, rows of panels with their queries, and the JSON that Grafana reads.

The types are those of Grafana's Foundation SDK, which is generated from Grafana's schema: mypy
refuses a field that is not in it. The SDK lacks one thing: the fields of Prometheus' annotations
beside the common ones, which Grafana keeps at the same level (packages/grafana-prometheus,
annotations.ts). `fleet` and `experiment` are made of these parts; `tools.chart` writes their JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import common as builders
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as queries

# Names of the template variables; `$namespace` and the like in queries.
Variable = Literal["namespace", "experiment"]
# lines: over time. stack: on top of each other. stat: the latest, large. table: the latest, a row
# for each series.
Kind = Literal["lines", "stack", "stat", "table"]
# Grafana's names of units (packages/grafana-data, valueFormats): rowsps, ops and reqps are per
# second, percentunit is a share of 1, "" is a number without a unit.
Unit = Literal["", "short", "percentunit", "s", "bytes", "rowsps", "ops", "reqps"]
GRID_COLUMNS = 24  # of Grafana


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of Prometheus; `legend` names its series, with {{labels}}."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The colour of numbers from this value upwards."""

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


# The kinds of Grafana's panels in a board; all have the methods that are used here.
AnyPanel = timeseries.Panel | stat.Panel | table.Panel

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = {"stat": 4, "lines": 8, "stack": 8, "table": 8}
_LABELS = {"namespace": "Namespace", "experiment": "Experiment"}
_MARK_STEP = "15s"
_LETTERS = "ABCDEFGH"  # of a panel's queries


class MarkQuery(models.AnnotationQuery):
    """An annotation of Prometheus."""

    mark: Mark

    def to_json(self) -> dict[str, object]:
        """Return the common fields, and those of Prometheus."""
        return super().to_json() | {
            "step": _MARK_STEP,
            "titleFormat": self.mark.title,
            "textFormat": self.mark.text,
            "useValueForTime": True,
        }


class _MarkBuilder(dashboard.AnnotationQuery):
    def __init__(self, mark: Mark) -> None:
        self._internal = MarkQuery(
            name=mark.name,
            datasource=SOURCE,
            icon_color=mark.colour,
            expr=mark.expr,
        )
        self._internal.mark = mark


def render(board: Board) -> str:
    """Return the committed JSON of a dashboard."""
    encoder = JSONEncoder(indent=2, ensure_ascii=False)
    return encoder.encode(build_dashboard(board)) + "\n"


def build_dashboard(board: Board) -> models.Dashboard:
    """Build the dashboard; panels are numbered in their order."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.name)
        .description(board.description)
        .tags(["lastmile"])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_link_others())
        .with_variable(_build_source())
    )
    for name in board.variables:
        built.with_variable(_build_variable(name, is_one=board.variables[-1] == "experiment"))
    for mark in board.marks:
        built.annotation(_MarkBuilder(mark))
    number = 0
    for row in board.rows:
        number += 1
        built.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            built.with_panel(_build_panel(panel).id(number))
    return built.build()


def _link_others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Lastmile")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["lastmile"])
        .include_vars(True)
        .keep_time(True)
    )


def _build_source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _build_variable(name: Variable, *, is_one: bool) -> dashboard.QueryVariable:
    """Build a variable that lists namespaces or experiments; all of them unless one is shown."""
    within = '{namespace="$namespace"}' if name == "experiment" else ""
    variable = (
        dashboard.QueryVariable(name)
        .label(_LABELS[name])
        .datasource(SOURCE)
        .query(f"label_values(lastmile_experiment_phase{within}, {name})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    return variable if is_one else variable.multi(True).include_all(True).all_value(".*")


def _build_panel(panel: Panel) -> AnyPanel:
    built = _choose_panel(panel)
    built.title(panel.title).description(panel.description).datasource(SOURCE)
    built.unit(panel.unit or "none").span(panel.width).height(_HEIGHT[panel.kind])
    if panel.from_zero:
        built.min(0)
    if panel.top is not None:
        built.max(panel.top)
    built.thresholds(_build_thresholds(panel))
    is_latest = panel.kind in ("stat", "table")
    for letter, query in zip(_LETTERS, panel.queries, strict=False):
        built.with_target(_build_query(query, letter, is_latest=is_latest))
    return built


def _choose_panel(panel: Panel) -> AnyPanel:
    if panel.kind == "stat":
        return _build_stat(panel)
    if panel.kind == "table":
        latest = models.DataTransformerConfig(
            id_val="reduce", options={"reducers": ["lastNotNull"]}
        )
        return table.Panel().align(common.FieldTextAlignment.AUTO).with_transformation(latest)
    return _build_lines(panel)


def _build_stat(panel: Panel) -> stat.Panel:
    has_name = common.BigValueTextMode.NAME
    return (
        stat.Panel()
        .text_mode(has_name if panel.shows_label else common.BigValueTextMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .reduce_options(builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def _build_lines(panel: Panel) -> timeseries.Panel:
    lines = (
        timeseries.Panel()
        .legend(
            builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .line_width(1)
    )
    if panel.steps:
        style = builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        lines.thresholds_style(style)
    if panel.kind == "stack":
        lines.fill_opacity(40)
        lines.stacking(builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    return lines


def _build_thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    first = models.Threshold(value=None, color="green")
    steps = [models.Threshold(value=step.value, color=step.colour) for step in panel.steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps([first, *steps])


def _build_query(query: Query, letter: str, *, is_latest: bool) -> prometheus.Dataquery:
    built = (
        prometheus.Dataquery()
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .editor_mode(queries.QueryEditorMode.CODE)
        .ref_id(letter)
    )
    return built.instant() if is_latest else built.range()
