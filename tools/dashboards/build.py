"""Makes Grafana's JSON of what the source says, by the types of Grafana's own Foundation SDK.

The SDK is generated from Grafana's schema, so what is no field there does not pass mypy. One thing
is not in it: what Prometheus' annotations have beside the common fields, which Grafana keeps at the
same level (packages/grafana-prometheus, annotations.ts).
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import common as builders
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as queries

from tools.dashboards.panels import Board, Mark, Panel, Query, Variable

# Panels of Grafana that a board is made of; each has the methods that are used here.
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
    """Return the JSON of a dashboard as it is committed."""
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
