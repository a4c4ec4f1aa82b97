"""Explain the numbers of workers of a run, and what would change them, for `describe`.

The experiment alone has all that is needed. The conditions about scaling are about data workers:
each has a reason, and the numbers of its time. This module says what the reason means, and what
would bring more or fewer workers. The status of other groups has the reason of each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dataset_operator import api
from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling import interface as law
from dataset_operator.autoscaling.bottleneck import MIN_PRODUCTION_SHARE
from dataset_operator.cli.printing import format_age
from dataset_operator.documents import Document, parse_time
from dataset_operator.groups import GROUPS, Groups, WorkerGroup, list_scaled
from dataset_operator.plan.draining import DRAIN_SECONDS
from dataset_operator.status import count_staying, is_working, list_workers
from pipeline_runtime.config import (
    Condition,
    DecisionStatus,
    DrainingStatus,
    ExperimentStatus,
    InferenceWorkerStatus,
    WorkerStatus,
)
from pipeline_runtime.formatting import format_age_seconds

# One screen: the latest changes of the number.
_MAX_CHANGES = 3
_TARGET_PERCENT = 95  # of the spec, if it says none


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The facts that the sentences are built from."""

    name: str
    status: ExperimentStatus
    lowest: int | None
    highest: int | None
    window_seconds: float
    target_percent: int | None  # of the GPUs, if the number follows them alone
    is_writing: bool  # the workers store the rows of a table themselves
    now: datetime

    @property
    def wanted(self) -> int:
        """Desired workers, without those that are draining."""
        return count_staying(self.status.data_workers) or 0

    @property
    def bounds(self) -> str:
        return f"{self.lowest} to {self.highest}"


Sentence = Callable[[_Known], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reason:
    """Meaning of a reason, in words before its message, and the remedy."""

    means: str
    more: Sentence
    fewer: Sentence


def explain_workers(
    document: Document,
    status: ExperimentStatus,
    now: datetime | None = None,
    groups: Groups = GROUPS,
) -> Iterator[tuple[str, str]]:
    """Yield labels and sentences; nothing before there is a cluster."""
    for kind in list_scaled(groups):
        if kind.role == DATA_WORKERS:
            yield from _explain_data_workers(document, status, now or datetime.now(UTC))
        else:
            yield from _explain_groups(document, status, kind, now or datetime.now(UTC))


def _explain_groups(
    document: Document, status: ExperimentStatus, kind: WorkerGroup, now: datetime
) -> Iterator[tuple[str, str]]:
    label, found = f"{kind.noun.capitalize()}s", document["spec"].get(kind.spec_field)
    listed: list[Document] = (found or []) if kind.is_list else [found or {}]
    sections = {each.get("name", ""): each for each in listed}
    for workers in list_workers(status, kind):
        name = getattr(workers, "name", "")  # only groups of a list have one
        section = sections.get(name, {})
        least, most = section.get("minReplicas", 1), section.get("maxReplicas", 1)
        numbers = f"{_count_ready(workers)}, may be {least} to {most}"
        yield f"{label} {name}" if name else label, numbers
        if isinstance(workers, InferenceWorkerStatus) and workers.current_replicas:
            yield from _explain_inference(workers, now)


def _explain_inference(workers: InferenceWorkerStatus, now: datetime) -> Iterator[tuple[str, str]]:
    if workers.message:
        yield "  why", workers.message
    if leaving := [each for each in workers.draining if not each.lost]:
        staying = count_staying(workers) or 0
        yield "  leaving", f"{len(leaving)} answer their requests, and end; {staying} stay"
    if lost := [each.name for each in workers.draining if each.lost]:
        yield "  lost", f"{', '.join(lost)}: replaced, though not gone yet"
    if workers.last_scale_time:
        yield "  changed", f"{format_age(workers.last_scale_time, now)} ago"


def _explain_data_workers(
    document: Document, status: ExperimentStatus, now: datetime
) -> Iterator[tuple[str, str]]:
    workers = status.data_workers
    if workers is None:
        return
    known = _read(document, status, now)
    yield "Workers", _count(known, workers)
    if status.completion_time is not None or not workers.current_replicas:
        return
    why, reason = _explain(known)
    yield "  why", why
    if reason is not None:
        yield from _explain_reason(known, reason)
    if leaving := [each for each in workers.draining if not each.lost]:
        yield "  leaving", _describe_leaving(known, leaving)
    if lost := [each.name for each in workers.draining if each.lost]:
        yield "  lost", f"{', '.join(lost)}: replaced, though not gone yet"
    if changes := _list_changes(known):
        yield "  changed", changes


def _explain_reason(known: _Known, reason: _Reason) -> Iterator[tuple[str, str]]:
    more, fewer = reason.more(known), reason.fewer(known)
    if more == fewer:
        yield "  change", more
    else:
        yield from (("  more", more), ("  fewer", fewer))


def _read(document: Document, status: ExperimentStatus, now: datetime) -> _Known:
    spec = document["spec"]
    workers = spec.get("dataWorkers") or {}
    rules = spec.get("autoscaling") or {}
    window = (rules.get("scaleDown") or {}).get("stabilizationWindowSeconds")
    return _Known(
        name=document["metadata"]["name"],
        status=status,
        lowest=workers.get("minReplicas"),
        highest=workers.get("maxReplicas"),
        window_seconds=law.SCALE_DOWN_WINDOW_SECONDS if window is None else window,
        target_percent=rules.get("targetGpuUtilizationPercent", _TARGET_PERCENT)
        if rules.get("signal") == "GpuUtilization"
        else None,
        is_writing=spec.get("output") is not None,
        now=now,
    )


def _count(known: _Known, workers: WorkerStatus) -> str:
    text = _count_ready(workers)
    return text if known.lowest is None else f"{text}, may be {known.bounds}"


def _count_ready(workers: WorkerStatus) -> str:
    return f"{workers.ready_replicas} of {workers.desired_replicas or 0} ready"


# --- why ------------------------------------------------------------------------------------------


def _explain(known: _Known) -> tuple[str, _Reason | None]:
    """Explain the number of workers, and what would change it if that is known."""
    status = known.status
    active = status.find(api.SCALING_ACTIVE)
    if not is_working(status):
        return _IDLE, None
    if active is None:
        return (_BEGINS, None) if status.scaling is not None else (_SETTINGS, _BY_HAND)
    reasons = {**_REASONS, **(_WRITING_REASONS if known.is_writing else {})}
    if active.status != "True":
        since = format_age(active.last_transition_time, known.now)
        return _format_reason(reasons, active, f" for {since}"), reasons.get(active.reason)
    limited = status.find(api.SCALING_LIMITED)
    if limited is None:
        return _BEGINS, None
    reason = reasons.get(limited.reason, reasons[law.DESIRED_WITHIN_RANGE])
    return _format_reason(reasons, limited), reason


_IDLE = (
    "the run begins with this number, or had it last; nothing is scaled before it trains or writes"
)
_BEGINS = "too little is known about the run yet, such as before its first 20 steps or chunks"
_SETTINGS = (
    "the operator's settings turn scaling off (autoscale: false): the number is what the run began "
    "with, or what somebody set"
)


def _format_reason(reasons: Mapping[str, _Reason], condition: Condition, since: str = "") -> str:
    reason = reasons.get(condition.reason)
    message = " ".join(condition.message.split())
    return f"{reason.means}{since}: {message}" if reason is not None else message


# --- what would change it -------------------------------------------------------------------------


def _more_if_starved(known: _Known) -> str:
    if known.highest is not None and known.wanted >= known.highest:
        return _more_at_the_most(known)
    if known.target_percent is not None:
        return (
            f"if the GPUs are less than {known.target_percent}% busy, and a few more, tried now "
            f"and then, are seen to help; at most {known.highest}"
        )
    return (
        f"if trainers wait for rows {MIN_PRODUCTION_SHARE:.0%} of their time or more, and need "
        f"more than {known.wanted}; at most {known.highest}"
    )


def _more_if_they_help(known: _Known) -> str:
    if known.highest is not None and known.wanted >= known.highest:
        return _more_at_the_most(known)
    return f"once these are seen to store more rows per second; at most {known.highest}"


def _fewer_at_saturation(known: _Known) -> str:
    return f"once fewer are seen to store as many rows; never fewer than {known.lowest}"


def _more_at_the_most(known: _Known) -> str:
    return f"raise dataWorkers.maxReplicas, now {known.highest}: the change takes effect at once"


def _fewer_if_spare(known: _Known) -> str:
    if known.lowest is not None and known.wanted <= known.lowest:
        return _fewer_at_the_least(known)
    if known.target_percent is not None:
        return (
            f"if the GPUs stay {known.target_percent}% busy with fewer, tried now and then; never "
            f"fewer than {known.lowest}"
        )
    window = format_age_seconds(known.window_seconds)
    return f"if fewer are enough for a whole {window}; never fewer than {known.lowest}"


def _fewer_at_the_least(known: _Known) -> str:
    return f"lower dataWorkers.minReplicas, now {known.lowest}: the change takes effect at once"


def _fewer_soon(known: _Known) -> str:
    window = format_age_seconds(known.window_seconds)
    return f"by itself, once fewer would have done for a whole {window}"


def _at_saturation(known: _Known) -> str:
    point = known.status.scaling.saturation_point if known.status.scaling else None
    left = (parse_time(point.until_time) - known.now).total_seconds() if point else 0.0
    when = f", or in {format_age_seconds(left)}" if left > 0 else ""
    return f"once so many could bring more rows, as when rows become cheaper{when}"


def _by_hand(known: _Known) -> str:
    return f"lastmile scale {known.name} --data-workers N, from {known.bounds}"


def _always(text: str) -> Sentence:
    return lambda known: text


_BY_HAND = _Reason(means="", more=_by_hand, fewer=_by_hand)
_WITH_METRICS = _always("once the metrics are back; lost pods are replaced in any case")
_REASONS: Mapping[str, _Reason] = {
    law.DESIRED_WITHIN_RANGE: _Reason(
        means="it is what the trainers need", more=_more_if_starved, fewer=_fewer_if_spare
    ),
    law.TOO_MANY_REPLICAS: _Reason(
        means="more are needed than dataWorkers.maxReplicas allows",
        more=_more_at_the_most,
        fewer=_fewer_if_spare,
    ),
    law.TOO_FEW_REPLICAS: _Reason(
        means="fewer are enough than dataWorkers.minReplicas allows",
        more=_more_if_starved,
        fewer=_fewer_at_the_least,
    ),
    law.SCALE_UP_LIMIT: _Reason(
        means="more are needed, and are added step by step",
        more=_always("by itself, once these are seen to help and autoscaling.scaleUp lets it"),
        fewer=_fewer_if_spare,
    ),
    law.SCALE_UP_STABILIZED: _Reason(
        means="more are needed, but not for long enough yet",
        more=_always("once they were needed for autoscaling.scaleUp.stabilizationWindowSeconds"),
        fewer=_fewer_if_spare,
    ),
    law.SCALE_DOWN_LIMIT: _Reason(
        means="fewer are enough, and some are removed step by step",
        more=_more_if_starved,
        fewer=_always("by itself, as fast as autoscaling.scaleDown.policies allow"),
    ),
    law.SCALE_DOWN_STABILIZED: _Reason(
        means="fewer are enough, but not for long enough yet",
        more=_more_if_starved,
        fewer=_fewer_soon,
    ),
    law.UNSCHEDULABLE: _Reason(
        means="more are needed, but pods do not start",
        more=_always(
            "they are requested again after a pause; add nodes, raise a quota or request less"
        ),
        fewer=_fewer_if_spare,
    ),
    law.SATURATION_POINT_REACHED: _Reason(
        means="more workers bring no more rows", more=_at_saturation, fewer=_fewer_if_spare
    ),
    api.BOTTLENECK_ELSEWHERE: _Reason(
        means="more workers would not help",
        more=_always("once that bottleneck is gone"),
        fewer=_fewer_if_spare,
    ),
    law.METRICS_UNKNOWN: _Reason(
        means="the demand of the run is not known", more=_WITH_METRICS, fewer=_WITH_METRICS
    ),
    law.SCALING_DISABLED: _Reason(
        means="the spec turns scaling off",
        more=_always("with a higher dataWorkers.maxReplicas, or autoscaling.scaleUp not Disabled"),
        fewer=_always("with a lower dataWorkers.minReplicas, or scaleDown not Disabled"),
    ),
}

# Where the workers store the rows of a table, no trainer bounds their number.
_WRITING_REASONS: Mapping[str, _Reason] = {
    law.DESIRED_WITHIN_RANGE: _Reason(
        means="more are added as long as they store more rows per second",
        more=_more_if_they_help,
        fewer=_fewer_at_saturation,
    ),
    law.TOO_MANY_REPLICAS: _Reason(
        means="all workers that dataWorkers.maxReplicas allows help",
        more=_more_at_the_most,
        fewer=_fewer_at_saturation,
    ),
    law.SCALE_UP_LIMIT: _Reason(
        means="more are added step by step",
        more=_more_if_they_help,
        fewer=_fewer_at_saturation,
    ),
    law.SATURATION_POINT_REACHED: _Reason(
        means="more store no more rows per second",
        more=_at_saturation,
        fewer=_fewer_at_saturation,
    ),
}


# --- draining workers and past changes ------------------------------------------------------------


def _describe_leaving(known: _Known, leaving: Sequence[DrainingStatus]) -> str:
    began = min(parse_time(each.time) for each in leaving)
    left = DRAIN_SECONDS - (known.now - began).total_seconds()
    until = f"at most {format_age_seconds(left)} more" if left > 0 else "their time is over"
    number = f"{len(leaving)} hand over their rows, and end"
    return f"{number} ({until}); {known.wanted} stay"


def _list_changes(known: _Known) -> str:
    """Return the last changes of the number of workers, the latest first."""
    if known.status.scaling is not None and known.status.scaling.decisions:
        latest = reversed(known.status.scaling.decisions[-_MAX_CHANGES:])
        return "; ".join(_describe_change(known, decision) for decision in latest)
    changed = known.status.last_scale_time
    return f"{format_age(changed, known.now)} ago" if changed else ""


def _describe_change(known: _Known, decision: DecisionStatus) -> str:
    ago = format_age(decision.time, known.now)
    inputs = {item.name: item.value for item in decision.inputs}
    waited = inputs.get("productionShare")
    why = f", when trainers waited {float(waited):.0%}" if waited is not None else ""
    return f"{decision.before} → {decision.after} {ago} ago{why}"
