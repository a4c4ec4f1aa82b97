"""Metrics of each experiment, with the labels `namespace` and `experiment`.

They follow from the object alone, so every operator reports the same ones, as long as the object
exists. An experiment has about 30 series while it runs, and 15 once it has ended
(docs/operating/observe.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dataset_operator.groups import GROUPS, Groups, WorkerGroup, list_scaled
from dataset_operator.telemetry.standing import Standing

Key = tuple[str, str]  # namespace, name
Experiments = Sequence[tuple[Key, Standing]]
_KEY = ("namespace", "experiment")
# Counters, by their names, which are also fields of `UsageStatus`.
_USAGE = {
    "gpu_seconds": "GPUs that trainers held, times seconds.",
    "gpu_measured_seconds": ("GPU seconds for which it was known whether the GPUs worked."),
    "gpu_idle_seconds": "Measured GPU seconds in which the GPUs did not work.",
    "data_worker_seconds": "Data workers that were held, times seconds.",
}
_TIMES = {
    "start": "When the run began, or was last resumed, in Unix seconds.",
    "training_start": "When a driver of the run first ran, in Unix seconds.",
    "attempt_start": "When the attempt that has not ended was submitted, in Unix seconds.",
}
_COUNTS = {
    "attempts": "Attempts that were submitted, of all runs.",
    "failed_attempts": "Attempts of the present run that failed.",
}
_RATIOS = {
    "progress": "Share of the run that is done, while it trains.",
    "gpu_utilization": "How busy the trainers' GPUs are, their mean, while it trains.",
    "production_wait": "Share of the trainers' time spent waiting for data workers.",
}


def collect_experiments(
    experiments: Iterable[tuple[Key, Standing]], groups: Groups = GROUPS
) -> Iterator[Metric]:
    """Yield every family of metrics, with the values of all experiments."""
    known = list(experiments)
    yield from _collect_state(known)
    yield from _collect_usage(known)
    yield from _collect_cluster(known, groups)
    yield from _collect_history(known)


def _collect_state(experiments: Experiments) -> Iterator[Metric]:
    phase = _gauge("phase", "1 for the phase that an experiment is in.", "phase")
    condition = _gauge(
        "condition", "1 where a condition holds, 0 where it does not.", "type", "reason"
    )
    for key, standing in experiments:
        phase.add_metric([*key, standing.phase], 1)
        for about, holds in standing.conditions.items():
            condition.add_metric([*key, *about], holds)
    yield from (phase, condition)
    for name, text in _RATIOS.items():
        ratio = _gauge(f"{name}_ratio", text)
        for key, standing in experiments:
            if name in standing.ratios:
                ratio.add_metric(key, standing.ratios[name])
        yield ratio


def _collect_usage(experiments: Experiments) -> Iterator[Metric]:
    """Yield the usage of each experiment's current run; a new run starts at 0, like a counter."""
    used = [(key, standing.usage) for key, standing in experiments if standing.usage]
    for name, text in _USAGE.items():
        counter = _counter(name, text)
        for key, usage in used:
            counter.add_metric(key, getattr(usage, name))
        yield counter
    cost = _gauge(
        "cost",
        "What the present run has cost so far, by the prices in the operator's settings.",
        "currency",
    )
    for key, usage in used:
        if usage.cost is not None:
            cost.add_metric([*key, usage.currency or ""], float(usage.cost))
    yield cost


def _collect_cluster(experiments: Experiments, groups: Groups) -> Iterator[Metric]:
    gpus = _gauge("gpus", "GPUs that the cluster's trainers have.")
    for key, standing in experiments:
        if standing.gpus is not None:
            gpus.add_metric(key, standing.gpus)
    yield gpus
    for kind in list_scaled(groups):
        yield from _collect_group(experiments, kind)


def _collect_group(experiments: Experiments, kind: WorkerGroup) -> Iterator[Metric]:
    """Yield the numbers of a group that a policy scales."""
    name, noun = kind.attribute, kind.noun.capitalize()
    about = f"{noun}s of the cluster: current, of these ready and draining, and desired."
    workers = _gauge(name, about, "state")
    bounds = _gauge(f"{name}_limit", "The spec's minReplicas and maxReplicas.", "limit")
    for key, standing in experiments:
        for state, number in standing.workers.get(kind.spec_field, {}).items():
            workers.add_metric([*key, state], number)
        for limit, number in standing.worker_bounds.get(kind.spec_field, {}).items():
            bounds.add_metric([*key, limit], number)
    yield from (workers, bounds)


def _collect_history(experiments: Experiments) -> Iterator[Metric]:
    for name, text in _TIMES.items():
        time = _gauge(f"{name}_timestamp_seconds", text)
        for key, standing in experiments:
            if name in standing.times:
                time.add_metric(key, standing.times[name])
        yield time
    for name, text in _COUNTS.items():
        counter = _counter(name, text)
        for key, standing in experiments:
            if name in standing.counts:
                counter.add_metric(key, standing.counts[name])
        yield counter
    decided = _gauge(
        "decision_timestamp_seconds",
        "When the number of data workers was last changed, in Unix seconds, and why.",
        *("direction", "reason"),
    )
    for key, standing in experiments:
        if standing.decision is not None:
            about = [standing.decision.direction, standing.decision.reason]
            decided.add_metric([*key, *about], standing.decision.time)
    yield decided


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lastmile_experiment_{name}", text, labels=[*_KEY, *labels])


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"lastmile_experiment_{name}", text, labels=[*_KEY])
