"""How the training goes, into the status: rounded, and written down only now and then.

Everything that watches experiments gets every write, so a training that goes on is told at most
every 30 seconds, and not at all where nothing that is shown has changed.
"""

from __future__ import annotations

import math
from typing import Any

from dataset_operator.observed import Job, Progress, parse_time
from dataset_operator.plan.draft import Draft

UPDATE_SECONDS = 30.0
# Of a training that goes on: its last evaluation and checkpoint follow the last row.
_MOST_PERCENT = 99
# What a person reads; more digits would change at every look.
_RATE_DIGITS = 3
_METRIC_DIGITS = 6
# From here on `g` would write an exponent where a person expects a number.
_MAX_PLAIN = 1e15


def take_progress(draft: Draft, job: Job) -> None:
    """Take what the driver says of a running job; a job that succeeded is wholly done."""
    before = draft.status.get("trainer", {})
    if job.status == "SUCCEEDED":
        known: dict[str, Any] = {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
    elif draft.observed.progress is not None and _is_time(draft, before):
        known = build_trainer(draft.observed.progress)
    else:
        return
    after = before | known
    if after != before:
        draft.status["trainer"] = after | {"lastUpdateTime": draft.stamp()}


def _is_time(draft: Draft, before: dict[str, Any]) -> bool:
    """Whether it is; if not, look again when it will be."""
    told = before.get("lastUpdateTime")
    left = draft.until(parse_time(told), UPDATE_SECONDS) if told else 0.0
    if left > 0:
        draft.look_again(left)
    return left <= 0


def build_trainer(progress: Progress) -> dict[str, Any]:
    """`status.trainer` with what is known; integers, and decimals as strings."""
    ratio, seconds, rate = progress.ratio, progress.remaining_seconds, progress.samples_per_second
    fields = {
        "progressPercentage": None if ratio is None else min(_MOST_PERCENT, int(100 * ratio)),
        "estimatedRemainingSeconds": None if seconds is None else math.ceil(seconds),
        "samplesPerSecond": None if rate is None else format_decimal(rate, _RATE_DIGITS),
        "productionWaitPercent": _percent(progress.production_wait_ratio),
        "gpuUtilizationPercent": _percent(progress.gpu_utilization_ratio),
    }
    trainer: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if progress.metrics:
        trainer["metrics"] = [
            {"name": name, "value": format_decimal(value, _METRIC_DIGITS)}
            for name, value in sorted(progress.metrics.items())
        ]
    return trainer


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)


def format_decimal(value: float, digits: int) -> str:
    """A finite number as a decimal string with so many digits that count."""
    text = f"{value:.{digits}g}"
    is_plain = "e+" in text and abs(value) < _MAX_PLAIN
    return f"{float(text):.0f}" if is_plain else text
