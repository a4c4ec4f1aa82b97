"""The operator's own metrics, for Prometheus.

Labels are words of ours, but of what experiments use: those are as many as there are objects of the
kind, and go with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dataset_operator.telemetry.standing import Alone, Standing
from dataset_operator.telemetry.watched import Watched

# A pass is a handful of requests, each a few ms on an idle API server and at most 30 s.
_PASS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# /apis/GROUP/VERSION or /api/v1, then [namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]].
_PATH = re.compile(r"/(?:api|apis/[^/]+)/[^/]+/(?:namespaces/[^/]+/)?([^/]+)(/[^/]+)?(/[^/]+)?")
# Of `status.usage`, by field: a counter's name, and what it says.
_USAGE = {
    "gpuSeconds": ("gpu_seconds", "GPUs that trainers held, times seconds."),
    "gpuMeasuredSeconds": (
        "gpu_measured_seconds",
        "Of the GPU seconds, those in which it was known whether the GPUs worked.",
    ),
    "gpuIdleSeconds": ("gpu_idle_seconds", "Of the measured GPU seconds, those without work."),
    "dataWorkerSeconds": ("data_worker_seconds", "Data workers that were held, times seconds."),
}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class OperatorMetrics:
    """Counts passes and requests; what was watched is read when Prometheus asks."""

    def __init__(self, watched: Watched, standing: Standing | None = None) -> None:
        self.watched = watched
        self.standing = standing or Alone()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_WatchedCollector(watched))
        self.registry.register(_StandingCollector(self.standing))
        self._passes = Counter(
            "lastmile_operator_reconcile",
            "Passes over an experiment: done, conflict (looked again), failed, defect, cancelled.",
            ["result"],
            registry=self.registry,
        )
        self._pass_seconds = Histogram(
            "lastmile_operator_reconcile_seconds",
            "How long a pass took.",
            buckets=_PASS_BUCKETS,
            registry=self.registry,
        )
        self._errors = Counter(
            "lastmile_operator_errors",
            "Passes that failed, by the kind of error.",
            ["reason"],
            registry=self.registry,
        )
        self._requests = Histogram(
            "lastmile_operator_api_request_seconds",
            "Requests to the API server; code 0 is no answer.",
            ["verb", "resource", "code"],
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )

    def count_pass(self, result: str, reason: str | None, seconds: float) -> None:
        """Count a pass; `reason` is the class of the error that it failed with."""
        self._passes.labels(result).inc()
        self._pass_seconds.observe(seconds)
        if reason is not None:
            self._errors.labels(reason).inc()

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request to the API server."""
        verb, resource = parse_request(method, path)
        self._requests.labels(verb, resource, str(status)).observe(seconds)


def parse_request(method: str, path: str) -> tuple[str, str]:
    """Verb and resource as Kubernetes itself counts them: ('get', 'pods'), ('update', 'x/status').

    `discovery` stands for paths that name no resource.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return "get", "discovery"
    resource, name, subresource = found.groups()
    verb = _VERBS.get(method) or ("get" if name else "list")
    return verb, resource + (subresource or "")


@dataclass(frozen=True, eq=False)
class _StandingCollector(Collector):
    """A gauge of whether this operator acts."""

    standing: Standing

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield GaugeMetricFamily(
            "lastmile_operator_leader",
            "1 on the operator that acts, 0 on those that stand by.",
            value=float(self.standing.is_leading),
        )


@dataclass(frozen=True, eq=False)
class _WatchedCollector(Collector):
    """Gauges of what was watched, as they are at the moment."""

    watched: Watched

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        phases = GaugeMetricFamily(
            "lastmile_operator_experiments", "Experiments by phase.", labels=["phase"]
        )
        for phase, number in self.watched.phases.items():
            phases.add_metric([phase], number)
        yield phases
        yield from self._collect_usage()
        missed = self.watched.find_oldest_missed()
        yield GaugeMetricFamily(
            "lastmile_operator_watch_lag_seconds",
            "For how long what the API server lists has not come through the watch.",
            value=missed[1] if missed else 0.0,
        )
        age = self.watched.event_age_seconds
        if age is not None:
            yield GaugeMetricFamily(
                "lastmile_operator_last_event_age_seconds",
                "How long ago an experiment's last event came through the watch.",
                value=age,
            )

    def _collect_usage(self) -> Iterator[Metric]:
        """Of each experiment's present run; another run begins from 0, as a counter may."""
        used = list(self.watched.list_usage())
        for field, (name, text) in _USAGE.items():
            counter = CounterMetricFamily(
                f"lastmile_experiment_{name}", text, labels=["namespace", "experiment"]
            )
            for key, usage in used:
                counter.add_metric([*key], usage.get(field, 0))
            yield counter
        cost = GaugeMetricFamily(
            "lastmile_experiment_cost",
            "What the present run has cost so far, by the prices in the operator's settings.",
            labels=["namespace", "experiment", "currency"],
        )
        for key, usage in used:
            if "cost" in usage:
                cost.add_metric([*key, usage.get("currency", "")], float(usage["cost"]))
        yield cost
