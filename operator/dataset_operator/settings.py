"""The operator's configuration, which a platform engineer sets once for all experiments.

It is parsed once, from a YAML file or the values of the chart, and then passed on as values. Fields
that an experiment can set too are its defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from dataset_operator.api import DATA_WORKERS, HEAD, INFERENCE, TRAINERS, Role
from dataset_operator.groups import WorkerGroup, find_kind
from pipeline_runtime.config import Resources, SpecModel, StoreUri

# The Ray version that the runtime image is tested with; token authentication needs 2.52 or newer.
RAY_VERSION = "2.60.0"
# Long enough for a checkpoint to be written after SIGTERM; Kubernetes' own default is 30.
DEFAULT_GRACE_SECONDS = 120
_MAX_CURRENCY_CHARS = 16  # `status.usage.currency` in the CRD


def _default_of(role: Role) -> Callable[[], Resources]:
    kind = find_kind(role)
    assert kind is not None
    return lambda: kind.default_resources


class RoleResources(SpecModel):
    """Resources of pods for which an experiment sets none."""

    head: Resources = Field(default_factory=_default_of(HEAD))
    trainers: Resources = Field(default_factory=_default_of(TRAINERS))
    data_workers: Resources = Field(default_factory=_default_of(DATA_WORKERS))
    inference_workers: Resources = Field(default_factory=_default_of(f"{INFERENCE}-"))

    def get(self, kind: WorkerGroup) -> Resources:
        """Return the resources of a group's pods: the setting, or the group's default."""
        found: Resources = getattr(self, kind.attribute, kind.default_resources)
        return found


def _check_cidr(text: str) -> str:
    """Check a range of IP addresses, as a NetworkPolicy takes it."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        rule = "must be a range of addresses such as 10.0.0.0/28 ({error})"
        raise PydanticCustomError("cidr", rule, {"error": str(error)}) from error


_LABEL = r"^[a-zA-Z_][a-zA-Z0-9_]*$"  # name of a label (Prometheus docs, data model)
NameServers = Literal["KubeDns", "NodeLocalDns", "OpenShift"]
Cidr = Annotated[str, AfterValidator(_check_cidr)]


class NetworkSettings(SpecModel):
    """Access to and from an experiment's pods."""

    operator_namespace: str = "lastmile-system"
    operator_labels: dict[str, str] = Field(
        default_factory=lambda: {"app.kubernetes.io/name": "lastmile-operator"}
    )
    prometheus_namespace: str | None = None  # None: no scraping from outside
    prometheus_labels: dict[str, str] = Field(default_factory=dict)
    # Addresses of the API server's proxy, which `lastmile logs` and `lastmile operator --dev` use.
    api_server_cidrs: tuple[Cidr, ...] = ()
    # Name servers that closed egress allows: names of ready rules, or NetworkPolicy egress rules.
    name_servers: tuple[NameServers | dict[str, Any], ...] = (
        "KubeDns",
        "NodeLocalDns",
        "OpenShift",
    )
    # Egress rules beside those for the cluster's own pods and name servers; None: egress is open.
    egress: tuple[dict[str, Any], ...] | None = None


def _check_url(text: str) -> str:
    """Check the URL of an HTTP server."""
    parts = urlsplit(text)
    _ = parts.port  # raises ValueError if it is not a port
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        rule = "must be a URL such as http://prometheus.monitoring.svc:9090"
        raise PydanticCustomError("server_url", rule)
    return text.rstrip("/")


# For DCGM's exporter as its chart sets it up; $namespace and $pods are replaced.
GPU_QUERY = 'DCGM_FI_DEV_GPU_UTIL{namespace="$namespace",pod=~"$pods"}'


class PrometheusSettings(SpecModel):
    """Connection to a Prometheus that has the metrics of runs."""

    url: Annotated[str, AfterValidator(_check_url)]
    token_file: str | None = None  # read for every query, since service account tokens are rotated
    ca_file: str | None = None  # None: the system's authorities
    timeout_seconds: Annotated[int, Field(ge=1, le=10)] = 3
    # Its scrape interval; a value is used for three intervals.
    scrape_seconds: Annotated[int, Field(ge=1, le=300)] = 30
    namespace_label: Annotated[str, Field(pattern=_LABEL)] = "namespace"
    pod_label: Annotated[str, Field(pattern=_LABEL)] = "pod"
    gpu_query: str = GPU_QUERY  # a selector with one series per GPU
    gpu_unit: Literal["Percent", "Ratio"] = "Percent"


class MetricsSettings(SpecModel):
    """Source of the metrics of runs."""

    source: Literal["Runtime", "Prometheus"] = "Runtime"
    prometheus: PrometheusSettings | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.source == "Prometheus" and self.prometheus is None:
            yield "prometheus", "must be set with source Prometheus, but is absent; add its url"


class Prices(SpecModel):
    """Prices per hour, for `status.usage.cost`."""

    gpu_hour: Annotated[float, Field(ge=0)]  # of one GPU, with its share of the trainer's node
    data_worker_hour: Annotated[float, Field(ge=0)]  # of one data worker's pod
    currency: Annotated[str, Field(min_length=1, max_length=_MAX_CURRENCY_CHARS)] = "USD"


_LEASE_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # a DNS label, like the names of namespaces


class LeaseSettings(SpecModel):
    """The Lease for leader election among operators; names and defaults are those of client-go."""

    name: Annotated[str, Field(pattern=_LEASE_NAME)] = "lastmile-operator"
    namespace: Annotated[str, Field(pattern=_LEASE_NAME)] | None = None  # None: the operator's own
    lease_duration_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    renew_deadline_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    retry_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 2

    @property
    def seal_secret(self) -> str:
        """Name of the Secret with the key of the operator's seals, in the operator's namespace."""
        return f"{self.name}-seal"

    def rules(self) -> Iterator[tuple[str, str]]:
        duration, deadline = self.lease_duration_seconds, self.renew_deadline_seconds
        if duration <= deadline:
            rule = f"must be > renewDeadlineSeconds ({deadline}), got {duration}"
            yield "lease_duration_seconds", rule
        # A candidate waits up to 1.2 extra periods between tries (client-go, JitterFactor).
        if deadline <= 1.2 * self.retry_period_seconds:
            rule = f"must be > 1.2 × retryPeriodSeconds ({self.retry_period_seconds})"
            yield "renew_deadline_seconds", f"{rule}, got {deadline}"


class HistorySettings(SpecModel):
    """The history of clusters in the artifacts store, beside checkpoints and reports."""

    enabled: bool = True
    copy_seconds: Annotated[int, Field(ge=1, le=300)] = 10  # between copies of pods' logs
    timeout_seconds: Annotated[int, Field(ge=10, le=600)] = 120  # a cluster waits no longer
    keep_days: Annotated[int, Field(ge=0, le=3650)] = 0  # of older runs; 0: for ever


class OperatorSettings(SpecModel):
    """The operator's configuration."""

    runtime_image: str
    image_pull_policy: str = "IfNotPresent"
    ray_version: str = RAY_VERSION
    storage_root: StoreUri | None = None
    storage_secret: str | None = None
    gpu_resource: str | None = "nvidia.com/gpu"  # None: trainers get no device of a plugin
    service_account: str | None = None
    # Other accounts that a template may name, by the experiment's namespace; "*": every namespace.
    service_accounts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    # True if the operator scales data workers by itself, as spec.autoscaling sets it.
    autoscale: bool = True
    # Initial number of a run's data workers, within the spec's bounds; None: minReplicas.
    data_worker_replicas: Annotated[int, Field(ge=1)] | None = None
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    prices: Prices | None = None  # None: no cost is reported
    resources: RoleResources = Field(default_factory=RoleResources)
    network: NetworkSettings = Field(default_factory=NetworkSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    # True if operators elect a leader, which alone acts; None: True in a pod, False on a laptop.
    leader_election: bool | None = None
    lease: LeaseSettings = Field(default_factory=LeaseSettings)
    run_as_user: Annotated[int, Field(ge=1)] = 1000  # the user of the runtime image
    termination_grace_seconds: Annotated[int, Field(ge=0)] = DEFAULT_GRACE_SECONDS
    shared_memory_percent: Annotated[int, Field(ge=1, le=95)] = 40  # of a pod's memory limit
    tolerations: tuple[dict[str, Any], ...] = ()

    def allows_service_account(self, namespace: str, name: object) -> bool:
        """Return whether pods of an experiment may run as this service account."""
        listed = (*self.service_accounts.get("*", ()), *self.service_accounts.get(namespace, ()))
        return name in (self.service_account, *listed)


def parse_settings(document: Mapping[str, Any]) -> OperatorSettings:
    """Parse settings from the values of a configuration file. Raises pydantic's ValidationError."""
    return OperatorSettings.model_validate_json(json.dumps(document))
