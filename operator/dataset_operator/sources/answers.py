"""Parse Prometheus' answer to a query of raw samples into a page as a driver serves it.

A range (`{…}[90s]`, asked for once) gives samples with the times at which they were scraped, which
an instant vector hides behind the time of the query. All samples of one scrape have one time, so
those of the newest are the page as it was then: a series that is gone from it is not on the page,
however young its last sample. Format: Prometheus' HTTP API v1, `resultType` matrix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dataset_operator.errors import MetricsUnreachable
from dataset_operator.ray.inference_reports import PREFIX as _INFERENCE
from dataset_operator.sources.gpus import is_percent

_NAME = "__name__"
# Of the runtime's own series; every other label says from where a series was scraped.
_OUR_LABELS = ("stage", "state", "name", "phase", "catalog", "table", "snapshot_id")
# A platform may label its targets with a group. Prometheus then renames the runtime's own label,
# unless it honours it.
_GROUP, _RENAMED_GROUP = "group", "exported_group"
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# What tells GPUs apart: DCGM's exporter, a slice of it, Ray.
_GPU_LABELS = ("UUID", "GPU_I_ID", "GpuUuid")


class Series(BaseModel):
    """One series: its labels, and (seconds since 1970, value) of its samples."""

    model_config = ConfigDict(extra="ignore", strict=True)

    metric: dict[str, str]
    values: list[tuple[float, str]] = []

    @property
    def last(self) -> tuple[float, str]:
        """Its newest sample; (-∞, "") if it has none."""
        sound = (value for value in self.values if math.isfinite(value[0]))
        return max(sound, default=(-math.inf, ""), key=lambda value: value[0])


class _Data(BaseModel):
    resultType: Literal["matrix"]  # noqa: N815 - Prometheus' own name
    result: list[Series]


class _Answer(BaseModel):
    status: Literal["success"]
    data: _Data


class _Refusal(BaseModel):
    error: str


def parse_answer(content: bytes) -> list[Series]:
    """The series of an answer. Raises MetricsUnreachable for anything else."""
    try:
        return _Answer.model_validate_json(content).data.result
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MetricsUnreachable(f"not an answer of Prometheus: {place}: {first['msg']}") from error


def explain_refusal(content: bytes) -> str:
    """Return Prometheus' reason for refusing a query; "" if it gives none."""
    try:
        return _Refusal.model_validate_json(content).error
    except ValidationError:
        return ""


def build_page(series: Iterable[Series], since: float) -> str:
    """The newest page that a driver served, in the text format; "" if there is none.

    Of two targets that were scraped for the same series the one that was scraped last counts, and
    no other: both tell of one driver, but not of one moment.

    Args:
        since: seconds since 1970; a page from before is another attempt's.
    """
    targets: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for each in series:
        ours = (_NAME, *_OUR_LABELS, _GROUP, _RENAMED_GROUP)
        labels = {k: v for k, v in each.metric.items() if k not in ours}
        targets.setdefault(tuple(sorted(labels.items())), []).append(each)
    pages = [(max(each.last[0] for each in target), key) for key, target in targets.items()]
    newest, key = max(pages, default=(-math.inf, ()))
    if not math.isfinite(newest) or newest < since:
        return ""
    return "".join(_build_line(each) for each in targets[key] if each.last[0] == newest)


def _build_line(series: Series) -> str:
    name = series.metric.get(_NAME, "")
    if not _METRIC_NAME.fullmatch(name):
        return ""
    found = {label: series.metric.get(label) for label in _OUR_LABELS}
    if name.startswith(_INFERENCE):
        found[_GROUP] = series.metric.get(_RENAMED_GROUP, series.metric.get(_GROUP))
    labels = ",".join(
        f'{label}="{value.translate(_ESCAPES)}"'
        for label, value in found.items()
        if value is not None
    )
    value = "".join(series.last[1].split())
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def parse_gpus(series: Sequence[Series], scale: float) -> dict[str, float]:
    """Percent by GPU; of two series of one GPU the newest sample counts.

    A GPU is told by its UUID; without one every series is a GPU of its own.

    Args:
        scale: by which a value is a percentage.
    """
    newest: dict[str, tuple[float, float]] = {}
    for each in series:
        (at, text), name = each.last, _name_gpu(each.metric)
        percent = _parse_number(text) * scale
        if is_percent(percent) and at > newest.get(name, (-math.inf, 0.0))[0]:
            newest[name] = (at, percent)
    return {name: percent for name, (_, percent) in newest.items()}


def _name_gpu(labels: Mapping[str, str]) -> str:
    known = [labels[label] for label in _GPU_LABELS if labels.get(label)]
    return "/".join(known) if known else str(sorted(labels.items()))


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
