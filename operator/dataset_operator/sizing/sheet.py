"""A simulation as a table and as a page.

The page is a document of plain values, which `pipeline_runtime.report.sheet` draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from dataset_operator.sizing.conclusion import format_workers
from dataset_operator.sizing.document import Curve, Outcome, Simulation
from pipeline_runtime.formatting import (
    NOTHING,
    format_duration,
    format_percent,
    format_short,
)

# A bound above this multiple of the requested workers is not drawn, since it flattens the curve.
_MAX_TIMES_SHOWN = 2.0


def build_header(simulation: Simulation) -> tuple[str, ...]:
    """Return the columns of the table."""
    unit = "GPU" if simulation.need.has_gpus else "Trainer"
    return (
        *("Policy", "Mean", "Settled", "Max", f"{unit} idle", "Time"),
        *("Worker hours", f"{unit} hours", "Cost", "Cost/M samples"),
    )


def build_rows(simulation: Simulation) -> list[tuple[str, ...]]:
    """Return the rows of the table; equal constants share one row."""
    rows, shown = [], set()
    for outcome in simulation.policies:
        if outcome.replicas in shown:
            continue
        shown.add(outcome.replicas)
        same = [o.name for o in simulation.policies if o.replicas == outcome.replicas]
        rows.append(_build_row(outcome, same))
    return rows


def _build_row(outcome: Outcome, names: Iterable[str]) -> tuple[str, ...]:
    is_constant = outcome.replicas is not None
    name = f"{outcome.replicas} ({', '.join(names)})" if is_constant else outcome.name
    settled = outcome.workers_settled
    time = format_duration(3600.0 * outcome.hours)
    return (
        name,
        f"{outcome.workers_mean:.1f}",
        "varies" if settled is None else str(settled),
        str(outcome.workers_max),
        format_percent(outcome.idle_ratio),
        time if outcome.is_complete else f">{time}",
        format_short(outcome.worker_hours),
        format_short(outcome.gpu_hours),
        format_short(outcome.cost),
        _format_known(outcome.cost_per_million),
    )


def _format_known(value: float | None) -> str:
    return NOTHING if value is None else format_short(value)


def describe(simulation: Simulation) -> Iterator[tuple[str, str]]:
    """Yield labels and sentences: required workers, rates, cost and assumptions."""
    need, assumed = simulation.need, simulation.assumed
    spread = f"{need.workers_low:.3g} to {need.workers_high:.3g} by what was measured"
    yield (
        "Needed",
        f"{format_workers(need.workers)} if all are busy ({spread}), {need.replicas} with "
        f"{format_percent(need.headroom)} headroom; {need.min_replicas} to {need.max_replicas} "
        "allowed",
    )
    yield (
        "Rates",
        f"{_count_units(simulation)} {'takes' if need.gpus == 1 else 'take'} "
        f"{format_short(need.demand)} samples/s, a busy data worker makes "
        f"{format_short(need.worker_rate)}",
    )
    yield "Whole run", _describe_whole(simulation)
    yield (
        "Simulated",
        f"{format_duration(3600.0 * assumed.hours)} of training, {assumed.times} times, seed "
        f"{assumed.seed}; pods start in {format_duration(assumed.start_seconds)}, steps and chunks "
        f"vary by {format_percent(assumed.noise_ratio)}{_describe_factors(simulation)}",
    )
    yield "Prices", _describe_prices(simulation)


def _describe_whole(simulation: Simulation) -> str:
    whole = simulation.outcome("autoscaler").whole_run
    epochs = "1 epoch" if simulation.epochs == 1 else f"{simulation.epochs:,} epochs"
    samples = f"{epochs}, {format_short(simulation.samples)} samples"
    if whole is None:
        return f"{samples}: no end is in sight"
    return f"{samples}: {format_duration(3600.0 * whole.hours)}, cost {format_short(whole.cost)}"


def _describe_factors(simulation: Simulation) -> str:
    assumed = simulation.assumed
    speed = f"; model's steps {assumed.gpu_speed:g} times as fast" if assumed.gpu_speed != 1 else ""
    cost = f"; rows cost {assumed.row_cost:g} times as much" if assumed.row_cost != 1 else ""
    return speed + cost


def _describe_prices(simulation: Simulation) -> str:
    assumed = simulation.assumed
    unit = "GPU" if simulation.need.has_gpus else "trainer"
    text = (
        f"{assumed.gpu_hour_price:g} an hour of one {unit}, {assumed.data_worker_hour_price:g} of "
        "one data worker"
    )
    hint = "; give yours by --gpu-price and --worker-price"
    return text if assumed.is_priced else text + hint


def _count_units(simulation: Simulation) -> str:
    need = simulation.need
    unit = "GPU" if need.has_gpus else "trainer"
    return f"1 {unit}" if need.gpus == 1 else f"{need.gpus} {unit}s"


def _format_stamp(text: str) -> str:
    """Format a time in ISO 8601 to the minute; return any other text unchanged."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text


# --- the page -------------------------------------------------------------------------------------


def build_sheet(simulation: Simulation) -> dict[str, Any]:
    """Return the page, as `pipeline_runtime.report.sheet` reads it."""
    ours, unit = (
        simulation.outcome("autoscaler"),
        "GPUs" if simulation.need.has_gpus else "trainers",
    )
    settled = ours.workers_settled
    badge = "varies" if settled is None else format_workers(settled)
    header, *rows = build_header(simulation), *build_rows(simulation)
    return {
        "title": simulation.experiment,
        "badge": badge,
        "lead": f"Simulated by what was profiled at "
        f"{_format_stamp(simulation.profile.measured_at)}, the model on "
        f"{simulation.profile.device}.",
        "warnings": list(simulation.warnings),
        "tiles": _build_tiles(simulation),
        "summary": simulation.headline[0].upper() + simulation.headline[1:] + ".",
        "advice": [{"field": a.field, "text": a.text} for a in simulation.advice],
        "charts": [
            _chart("workers", "Data workers", "count", _draw_workers(simulation)),
            _chart("idle", f"{unit} waiting for data", "share", _draw_idle(simulation)),
        ],
        "table": {
            "title": "What it would cost otherwise",
            "header": list(header),
            "rows": [list(row) for row in rows],
        },
        "facts": [{"title": title, "text": text} for title, text in describe(simulation)],
        "footer": "The numbers are in simulation.json beside this page; docs/simulate.md says how "
        "they come about.",
    }


def _build_tiles(simulation: Simulation) -> list[dict[str, str]]:
    ours, need = simulation.outcome("autoscaler"), simulation.need
    settled = "varies" if ours.workers_settled is None else str(ours.workers_settled)
    since = (
        "" if ours.settled_seconds is None else f"after {format_duration(ours.settled_seconds)}, "
    )
    unit = "GPUs" if need.has_gpus else "Trainers"
    tiles = (
        ("Data workers", settled, f"{since}{ours.workers_max} at most"),
        (f"{unit} wait", format_percent(ours.idle_ratio), "of their time, the start included"),
        ("Needed if all busy", f"{need.workers:.3g}", f"{need.replicas} with headroom"),
        ("A million samples cost", _format_known(ours.cost_per_million), "workers and trainers"),
        ("Whole run", *_build_whole(ours)),
    )
    return [{"title": title, "value": value, "exact": exact} for title, value, exact in tiles]


def _build_whole(outcome: Outcome) -> tuple[str, str]:
    whole = outcome.whole_run
    if whole is None:
        return NOTHING, "no end is in sight"
    return format_duration(3600.0 * whole.hours), f"cost {format_short(whole.cost)}"


def _chart(name: str, title: str, unit: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "title": title, "unit": unit, "lines": lines}


def _draw_workers(simulation: Simulation) -> list[dict[str, Any]]:
    curve = simulation.curves[0]
    lines = [
        _line("working", curve, curve.ready, is_strong=True),
        _line("asked for", curve, curve.asked, is_dashed=True),
    ]
    most = _MAX_TIMES_SHOWN * max(curve.asked)
    end = curve.seconds[-1]
    need = simulation.need
    bounds = {"minReplicas": need.min_replicas, "maxReplicas": need.max_replicas}
    return lines + [_flat(name, end, n) for name, n in bounds.items() if n <= most]


def _draw_idle(simulation: Simulation) -> list[dict[str, Any]]:
    """Draw idle shares as long as the autoscaler's run: a starved one takes many times that."""
    end = simulation.curves[0].seconds[-1]
    lines, shown = [], set()
    for outcome, curve in zip(simulation.policies, simulation.curves, strict=True):
        if outcome.replicas in shown:
            continue
        shown.add(outcome.replicas)
        count = sum(second <= end for second in curve.seconds)
        cut = curve.model_copy(update={"seconds": curve.seconds[:count]})
        number = "" if outcome.replicas is None else f"{outcome.replicas} "
        label = f"{number}{outcome.name}"
        lines.append(_line(label, cut, curve.idle_ratio[:count], is_strong=not number))
    return lines


def _line(
    name: str,
    curve: Curve,
    values: Iterable[float],
    *,
    is_strong: bool = False,
    is_dashed: bool = False,
) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": list(curve.seconds),
        "values": list(values),
        "isStrong": is_strong,
        "isDashed": is_dashed,
    }


def _flat(name: str, end: float, value: float) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": [0.0, end],
        "values": [value, value],
        "isStrong": False,
        "isDashed": True,
    }
