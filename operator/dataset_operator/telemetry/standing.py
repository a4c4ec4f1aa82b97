"""State of an experiment for Prometheus: small, since one is kept for each.

`watched` takes it from what comes through the watch, `experiment_metrics` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataset_operator.documents import parse_time
from dataset_operator.groups import GROUPS, Groups, WorkerGroup, list_scaled
from dataset_operator.status import is_working

# Fields of a group's part of the status, such as dataWorkers: the word that stands for each.
_WORKERS = {"currentReplicas": "current", "readyReplicas": "ready", "desiredReplicas": "desired"}
_BOUNDS = {"minReplicas": "min", "maxReplicas": "max"}
_PERCENTAGES = {
    "gpuUtilizationPercent": "gpu_utilization",
    "productionWaitPercent": "production_wait",
    "progressPercent": "progress",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The autoscaler's latest; `time` in Unix seconds."""

    time: float
    reason: str
    direction: str  # up or down


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An experiment at a moment; what is not known is absent, which is not 0.

    Attributes:
        conditions: their status by (type, reason).
        usage: of the present run, as its status has it.
        times: Unix seconds by name: `start`, `training_start`, `attempt_start`.
        counts: by name: `attempts`, `failed_attempts`.
        gpus: that its cluster holds; None without a cluster.
        workers: pods of each group that a policy scales, by the group's field and what they are:
            current, ready, desired, draining; empty without a cluster.
        worker_bounds: `min` and `max` of the spec for each such group; empty without a cluster.
        ratios: of a run whose driver runs, 0 to 1, by name.
    """

    phase: str
    conditions: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    gpus: int | None = None
    workers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    worker_bounds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    decision: Decision | None = None


def read_standing(document: Mapping[str, Any], groups: Groups = GROUPS) -> Standing:
    """Read the state of an experiment."""
    status: Mapping[str, Any] = document.get("status") or {}
    has_cluster = "rayClusterName" in status
    return Standing(
        phase=status.get("phase") or "Pending",
        conditions=_read_conditions(status),
        usage=status.get("usage") or {},
        times=_read_times(status),
        counts=_read_counts(status),
        gpus=status.get("gpus") if has_cluster else None,
        workers=_read_workers(status, groups) if has_cluster else {},
        worker_bounds=_read_bounds(document, groups) if has_cluster else {},
        ratios=_read_ratios(status) if is_working(status) else {},
        decision=_read_decision(status) if has_cluster else None,
    )


def _read_conditions(status: Mapping[str, Any]) -> dict[tuple[str, str], bool]:
    """Return the conditions that are True or False, without those that are Unknown."""
    conditions = status.get("conditions") or ()
    return {
        (condition["type"], condition["reason"]): condition["status"] == "True"
        for condition in conditions
        if condition["status"] != "Unknown"
    }


def _read_times(status: Mapping[str, Any]) -> dict[str, float]:
    fields = {"start": "startTime", "training_start": "trainingStartTime"}
    read = {name: _parse(status.get(key)) for name, key in fields.items()}
    read["attempt_start"] = _parse((status.get("submission") or {}).get("time"))
    return {name: time for name, time in read.items() if time is not None}


def _parse(text: str | None) -> float | None:
    """Parse a time as Unix seconds; None for any other text, which somebody may have written."""
    try:
        return parse_time(text or "").timestamp()
    except ValueError:
        return None


def _read_counts(status: Mapping[str, Any]) -> dict[str, int]:
    """Read the counts since the run's beginning, so that its first event raises a counter."""
    if "run" not in status:
        return {}
    return {
        "attempts": status.get("attempt", 0),
        "failed_attempts": status.get("failures", 0),
    }


def _read_workers(status: Mapping[str, Any], groups: Groups) -> dict[str, dict[str, int]]:
    """Read the numbers of pods; those of a list of groups are added up."""
    counted = {}
    for kind in list_scaled(groups):
        if sections := _list_sections(status, kind):
            numbers = dict.fromkeys(_WORKERS.values(), 0) | _add_up(sections, _WORKERS)
            numbers["draining"] = sum(len(each.get("draining") or ()) for each in sections)
            counted[kind.spec_field] = numbers
    return counted


def _read_bounds(document: Mapping[str, Any], groups: Groups) -> dict[str, dict[str, int]]:
    """Read the bounds in a spec, in which the API server has filled in the defaults."""
    spec, scaled = document.get("spec", {}), list_scaled(groups)
    return {kind.spec_field: _add_up(_list_sections(spec, kind), _BOUNDS) for kind in scaled}


def _list_sections(part: Mapping[str, Any], kind: WorkerGroup) -> list[Mapping[str, Any]]:
    found = part.get(kind.spec_field)
    return [each for each in (found if kind.is_list else [found]) or () if each]


def _add_up(sections: Sequence[Mapping[str, Any]], words: Mapping[str, str]) -> dict[str, int]:
    """Add up the numbers of sections, by word; a number that no section has is absent."""
    known = {word: [each[key] for each in sections if key in each] for key, word in words.items()}
    return {word: sum(numbers) for word, numbers in known.items() if numbers}


def _read_ratios(status: Mapping[str, Any]) -> dict[str, float]:
    trainer = status.get("trainer") or {}
    return {name: trainer[key] / 100 for key, name in _PERCENTAGES.items() if key in trainer}


def _read_decision(status: Mapping[str, Any]) -> Decision | None:
    decisions: Sequence[Mapping[str, Any]] = (status.get("scaling") or {}).get("decisions") or ()
    time = _parse(decisions[-1]["time"]) if decisions else None
    if time is None:
        return None
    last = decisions[-1]
    return Decision(
        time=time,
        reason=last["reason"],
        direction="up" if last["after"] > last["before"] else "down",
    )
