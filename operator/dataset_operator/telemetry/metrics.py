"""The operator's own metrics, for Prometheus.

Label values are constants of this package, so their number is bounded. Only `experiment_metrics`
has labels for each experiment, which disappear with it.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dataset_operator.scheduling.passes import Done, Trigger
from dataset_operator.settings import Prices
from dataset_operator.telemetry.experiment_metrics import collect_experiments
from dataset_operator.telemetry.leadership import Alone, Leadership
from dataset_operator.telemetry.watched import Watched
from pipeline_runtime.config import DISTRIBUTION

# A pass is a handful of requests, each a few ms on an idle API server and at most 30 s.
_PASS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# /apis/GROUP/VERSION or /api/v1, then [namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]].
_PATH = re.compile(r"/(?:api|apis/[^/]+)/[^/]+/(?:namespaces/[^/]+/)?([^/]+)(/[^/]+)?(/[^/]+)?")
_RESULTS = ("done", "conflict", "failed", "defect", "cancelled")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class OperatorMetrics:
    """Counts passes and requests; collects the state of experiments when Prometheus scrapes.

    Args:
        prices: of the settings, exported so that idle time can be priced.
        leadership: None: the operator runs without an election.
    """

    def __init__(
        self,
        watched: Watched,
        prices: Prices | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        self.watched = watched
        self.leadership = leadership or Alone()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_WatchedCollector(watched))
        self.registry.register(_LeadershipCollector(self.leadership))
        build = Gauge(
            "lastmile_operator_build_info",
            "1, with the version of the running operator.",
            ["version"],
            registry=self.registry,
        )
        build.labels(importlib.metadata.version(DISTRIBUTION)).set(1)
        self._tell_prices(prices)
        self._passes = Counter(
            "lastmile_operator_reconcile",
            "Passes over an experiment: done, conflict (repeated), failed, defect, cancelled.",
            ["result"],
            registry=self.registry,
        )
        for result in _RESULTS:  # start at 0, or Prometheus would not see the first one increase it
            self._passes.labels(result)
        self._pass_seconds = Histogram(
            "lastmile_operator_reconcile_seconds",
            "Duration of a pass.",
            buckets=_PASS_BUCKETS,
            registry=self.registry,
        )
        self._waits = Histogram(
            "lastmile_operator_queue_seconds",
            "Time that a pass waited for a slot, by trigger (edit, change of an object, clock).",
            ["trigger"],
            buckets=_PASS_BUCKETS,
            registry=self.registry,
        )
        for trigger in Trigger:
            self._waits.labels(trigger.value)
        self._errors = Counter(
            "lastmile_operator_errors",
            "Passes that failed, by the kind of error.",
            ["reason"],
            registry=self.registry,
        )
        self._requests = Histogram(
            "lastmile_operator_api_request_seconds",
            "Requests to the API server; code 0 means no answer.",
            ["verb", "resource", "code"],
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )

    def _tell_prices(self, prices: Prices | None) -> None:
        if prices is None:
            return
        told = Gauge(
            "lastmile_operator_price_per_hour",
            "Price of one per hour, from the operator's settings.",
            ["resource", "currency"],
            registry=self.registry,
        )
        told.labels("gpu", prices.currency).set(prices.gpu_hour)
        told.labels("data_worker", prices.currency).set(prices.data_worker_hour)

    def count_pass(self, done: Done) -> None:
        """Count a pass."""
        self._passes.labels(done.result).inc()
        self._pass_seconds.observe(done.seconds)
        self._waits.labels(done.trigger.value).observe(done.waited)
        if done.reason is not None:
            self._errors.labels(done.reason).inc()

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request to the API server."""
        verb, resource = parse_request(method, path)
        self._requests.labels(verb, resource, str(status)).observe(seconds)


def parse_request(method: str, path: str) -> tuple[str, str]:
    """Return verb and resource as Kubernetes counts them: ('get', 'pods'), ('update', 'x/status').

    The resource is `discovery` for paths that name none.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return "get", "discovery"
    resource, name, subresource = found.groups()
    verb = _VERBS.get(method) or ("get" if name else "list")
    return verb, resource + (subresource or "")


@dataclass(frozen=True, eq=False)
class _LeadershipCollector(Collector):
    """Collects whether this operator leads."""

    leadership: Leadership

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield GaugeMetricFamily(
            "lastmile_operator_leader",
            "1 on the operator that leads, 0 on those on standby.",
            value=float(self.leadership.is_leading),
        )


@dataclass(frozen=True, eq=False)
class _WatchedCollector(Collector):
    """Collects the current state of the watched experiments."""

    watched: Watched

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        phases = GaugeMetricFamily(
            "lastmile_operator_experiments", "Experiments by phase.", labels=["phase"]
        )
        for phase, number in self.watched.phases.items():
            phases.add_metric([phase], number)
        yield phases
        yield from collect_experiments(self.watched.list_standings())
        missed = self.watched.find_oldest_missed()
        yield GaugeMetricFamily(
            "lastmile_operator_watch_lag_seconds",
            "Age of the oldest listed version that has not come through the watch.",
            value=missed[1] if missed else 0.0,
        )
        age = self.watched.event_age_seconds
        if age is not None:
            yield GaugeMetricFamily(
                "lastmile_operator_last_event_age_seconds",
                "Time since the last event of an experiment came through the watch.",
                value=age,
            )
