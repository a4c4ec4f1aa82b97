"""The state of an experiment for Prometheus: small, since one is kept for each experiment.

`watched` reads it from the objects of passes, and `experiment_metrics` makes metrics of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset_operator.documents import parse_time
from dataset_operator.groups import GROUPS, Groups, WorkerGroup, list_scaled
from dataset_operator.status import is_working, list_workers
from pipeline_runtime.config import ExperimentStatus, TrainerStatus, UsageStatus

_BOUNDS = {"minReplicas": "min", "maxReplicas": "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The latest decision of the autoscaling policy; `time` in Unix seconds."""

    time: float
    reason: str
    direction: str  # up or down


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An experiment at a moment; an unknown number is absent, which differs from 0.

    Attributes:
        conditions: whether each condition holds, by (type, reason).
        usage: the usage of the present run.
        times: Unix seconds by name: `start`, `training_start`, `attempt_start`.
        counts: by name: `attempts`, `failed_attempts`.
        gpus: GPUs of its cluster; None without a cluster.
        workers: pods of each group that a policy scales, by the group's field and their state:
            current, ready, desired, draining; empty without a cluster.
        worker_bounds: `min` and `max` of the spec for each such group; empty without a cluster.
        ratios: ratios of a run whose driver runs, 0 to 1, by name.
    """

    phase: str
    conditions: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    usage: UsageStatus | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    gpus: int | None = None
    workers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    worker_bounds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    decision: Decision | None = None


def read_standing(
    document: Mapping[str, Any], status: ExperimentStatus, groups: Groups = GROUPS
) -> Standing:
    """Read the state of an experiment from its document and its parsed status."""
    has_cluster = status.ray_cluster_name is not None
    trainer = status.trainer
    return Standing(
        phase=status.phase or "Pending",
        conditions=_read_conditions(status),
        usage=status.usage,
        times=_read_times(status),
        counts=_read_counts(status),
        gpus=status.gpus if has_cluster else None,
        workers=_read_workers(status, groups) if has_cluster else {},
        worker_bounds=_read_bounds(document, groups) if has_cluster else {},
        ratios=_read_ratios(trainer) if trainer and is_working(status) else {},
        decision=_read_decision(status) if has_cluster else None,
    )


def _read_conditions(status: ExperimentStatus) -> dict[tuple[str, str], bool]:
    """Return the conditions that are True or False, without those that are Unknown."""
    return {
        (condition.type, condition.reason): condition.status == "True"
        for condition in status.conditions
        if condition.status != "Unknown"
    }


def _read_times(status: ExperimentStatus) -> dict[str, float]:
    texts = {
        "start": status.start_time,
        "training_start": status.training_start_time,
        "attempt_start": status.submission.time if status.submission else None,
    }
    return {name: parse_time(text).timestamp() for name, text in texts.items() if text}


def _read_counts(status: ExperimentStatus) -> dict[str, int]:
    """Read the counts since the run's beginning, so that its first event raises a counter."""
    if status.run is None:
        return {}
    return {"attempts": status.attempt or 0, "failed_attempts": status.failures or 0}


def _read_workers(status: ExperimentStatus, groups: Groups) -> dict[str, dict[str, int]]:
    """Read the numbers of pods; those of a list of groups are added up."""
    counted = {}
    for kind in list_scaled(groups):
        if workers := list_workers(status, kind):
            counted[kind.spec_field] = {
                "current": sum(each.current_replicas for each in workers),
                "ready": sum(each.ready_replicas for each in workers),
                "desired": sum(each.desired_replicas or 0 for each in workers),
                "draining": sum(len(each.draining) for each in workers),
            }
    return counted


def _read_bounds(document: Mapping[str, Any], groups: Groups) -> dict[str, dict[str, int]]:
    """Read the bounds in a spec, in which the API server has filled in the defaults."""
    spec, scaled = document.get("spec", {}), list_scaled(groups)
    return {kind.spec_field: _add_up_bounds(spec.get(kind.spec_field), kind) for kind in scaled}


def _add_up_bounds(found: Any, kind: WorkerGroup) -> dict[str, int]:
    """Add up the bounds of a field's groups; a bound that no group has is absent."""
    sections = [each for each in (found if kind.is_list else [found]) or () if each]
    known = {word: [each[key] for each in sections if key in each] for key, word in _BOUNDS.items()}
    return {word: sum(numbers) for word, numbers in known.items() if numbers}


def _read_ratios(trainer: TrainerStatus) -> dict[str, float]:
    percentages = {
        "gpu_utilization": trainer.gpu_utilization_percent,
        "production_wait": trainer.production_wait_percent,
        "progress": trainer.progress_percent,
    }
    return {name: value / 100 for name, value in percentages.items() if value is not None}


def _read_decision(status: ExperimentStatus) -> Decision | None:
    if status.scaling is None or not status.scaling.decisions:
        return None
    last = status.scaling.decisions[-1]
    return Decision(
        time=parse_time(last.time).timestamp(),
        reason=last.reason,
        direction="up" if last.after > last.before else "down",
    )
