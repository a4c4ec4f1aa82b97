"""What a platform engineer sets once for all experiments: the operator's own configuration.

Parsed at the edge (a YAML file, values of a chart); everything after it takes the values as they
are. Fields that an experiment may set too are its defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pipeline_runtime.config import Resources, SpecModel, StoreUri

# The Ray that the runtime image is tested with; token authentication needs 2.52 or newer.
RAY_VERSION = "2.60.0"
# Long enough for a checkpoint to be written after SIGTERM; Kubernetes' own default is 30.
DEFAULT_GRACE_SECONDS = 120
_MAX_CURRENCY_CHARS = 16  # `status.usage.currency` in the CRD


def _small_head() -> Resources:
    return Resources(requests={"cpu": "1", "memory": "4Gi"}, limits={"memory": "4Gi"})


def _trainer() -> Resources:
    return Resources(requests={"cpu": "4", "memory": "16Gi"}, limits={"memory": "16Gi"})


def _data_worker() -> Resources:
    return Resources(requests={"cpu": "4", "memory": "8Gi"}, limits={"cpu": "4", "memory": "8Gi"})


class RoleResources(SpecModel):
    """What pods get where an experiment says nothing."""

    head: Resources = Field(default_factory=_small_head)
    trainers: Resources = Field(default_factory=_trainer)
    data_workers: Resources = Field(default_factory=_data_worker)


def _check_cidr(text: str) -> str:
    """A range of addresses as a NetworkPolicy takes it."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        rule = "must be a range of addresses such as 10.0.0.0/28 ({error})"
        raise PydanticCustomError("cidr", rule, {"error": str(error)}) from error


_LABEL = r"^[a-zA-Z_][a-zA-Z0-9_]*$"  # of a series (Prometheus docs, data model)
NameServers = Literal["KubeDns", "NodeLocalDns", "OpenShift"]
Cidr = Annotated[str, AfterValidator(_check_cidr)]


class NetworkSettings(SpecModel):
    """Who may talk to an experiment's pods beside themselves."""

    operator_namespace: str = "lastmile-system"
    operator_labels: dict[str, str] = Field(
        default_factory=lambda: {"app.kubernetes.io/name": "lastmile-operator"}
    )
    prometheus_namespace: str | None = None  # None: no scraping from outside
    prometheus_labels: dict[str, str] = Field(default_factory=dict)
    # From where the API server's proxy comes: `lastmile logs` and `lastmile operator --dev` use it.
    api_server_cidrs: tuple[Cidr, ...] = ()
    # Where names are resolved while egress is closed: ready rules by name, or NetworkPolicy rules.
    name_servers: tuple[NameServers | dict[str, Any], ...] = (
        "KubeDns",
        "NodeLocalDns",
        "OpenShift",
    )
    # Rules of NetworkPolicy beside the cluster's own pods and name servers; None: egress is open.
    egress: tuple[dict[str, Any], ...] | None = None


def _check_url(text: str) -> str:
    """Of a server that is asked over HTTP."""
    parts = urlsplit(text)
    _ = parts.port  # raises ValueError if it is none
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        rule = "must be a URL such as http://prometheus.monitoring.svc:9090"
        raise PydanticCustomError("server_url", rule)
    return text.rstrip("/")


# DCGM's exporter, as its chart sets it up for Kubernetes; both names are replaced.
GPU_QUERY = 'DCGM_FI_DEV_GPU_UTIL{namespace="$namespace",pod=~"$pods"}'


class PrometheusSettings(SpecModel):
    """How a Prometheus is asked for a run's numbers."""

    url: Annotated[str, AfterValidator(_check_url)]
    token_file: str | None = None  # read at every query, since a service account's is rotated
    ca_file: str | None = None  # None: the system's authorities
    timeout_seconds: Annotated[int, Field(ge=1, le=10)] = 3
    # How often it scrapes the pods: a value is known for three scrapes.
    scrape_seconds: Annotated[int, Field(ge=1, le=300)] = 30
    namespace_label: Annotated[str, Field(pattern=_LABEL)] = "namespace"
    pod_label: Annotated[str, Field(pattern=_LABEL)] = "pod"
    gpu_query: str = GPU_QUERY  # a selector; one series a GPU
    gpu_unit: Literal["Percent", "Ratio"] = "Percent"


class MetricsSettings(SpecModel):
    """Where the numbers of runs come from."""

    source: Literal["runtime", "prometheus"] = "runtime"
    prometheus: PrometheusSettings | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.source == "prometheus" and self.prometheus is None:
            yield "prometheus", "must be given with source prometheus, is absent; add its url"


class Prices(SpecModel):
    """What an hour costs, for `status.usage.cost`."""

    gpu_hour: Annotated[float, Field(ge=0)]  # of one GPU, with its share of the trainer's node
    data_worker_hour: Annotated[float, Field(ge=0)]  # of one data worker's pod
    currency: Annotated[str, Field(min_length=1, max_length=_MAX_CURRENCY_CHARS)] = "USD"


_LEASE_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # a label's, which namespaces need too


class LeaseSettings(SpecModel):
    """The Lease by which several operators agree on who acts; defaults and names as client-go's."""

    name: Annotated[str, Field(pattern=_LEASE_NAME)] = "lastmile-operator"
    namespace: Annotated[str, Field(pattern=_LEASE_NAME)] | None = None  # None: the operator's own
    lease_duration_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    renew_deadline_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    retry_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 2

    @property
    def seal_secret(self) -> str:
        """The Secret with the key of the operator's seals, in the operator's own namespace."""
        return f"{self.name}-seal"

    def rules(self) -> Iterator[tuple[str, str]]:
        duration, deadline = self.lease_duration_seconds, self.renew_deadline_seconds
        if duration <= deadline:
            rule = f"must be > renewDeadlineSeconds ({deadline}), got {duration}"
            yield "lease_duration_seconds", rule
        # Who stands by tries up to 1.2 periods later than each period (client-go, JitterFactor).
        if deadline <= 1.2 * self.retry_period_seconds:
            rule = f"must be > 1.2 × retryPeriodSeconds ({self.retry_period_seconds})"
            yield "renew_deadline_seconds", f"{rule}, got {deadline}"


class HistorySettings(SpecModel):
    """What outlives a cluster in the artifacts store, beside checkpoints and reports."""

    enabled: bool = True
    copy_seconds: Annotated[int, Field(ge=1, le=300)] = 10  # between copies of pods' logs
    timeout_seconds: Annotated[int, Field(ge=10, le=600)] = 120  # that a cluster waits to be kept
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
    # Which others a template may name, by the experiment's namespace; "*" stands for every one.
    service_accounts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    # Whether the operator changes the number of data workers by itself, as spec.autoscaling says.
    autoscale: bool = True
    # What a run's data workers begin with, within the spec's bounds; None: minReplicas.
    data_worker_replicas: Annotated[int, Field(ge=1)] | None = None
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    prices: Prices | None = None  # None: no cost is told
    resources: RoleResources = Field(default_factory=RoleResources)
    network: NetworkSettings = Field(default_factory=NetworkSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    # Whether operators stand for a lease, of whom one acts; None: in a pod, not on a laptop.
    leader_election: bool | None = None
    lease: LeaseSettings = Field(default_factory=LeaseSettings)
    run_as_user: Annotated[int, Field(ge=1)] = 1000  # of the runtime image
    termination_grace_seconds: Annotated[int, Field(ge=0)] = DEFAULT_GRACE_SECONDS
    shared_memory_percent: Annotated[int, Field(ge=1, le=95)] = 40  # of a pod's memory limit
    tolerations: tuple[dict[str, Any], ...] = ()

    def allows_service_account(self, namespace: str, name: object) -> bool:
        """Return whether pods of an experiment may run as this service account."""
        listed = (*self.service_accounts.get("*", ()), *self.service_accounts.get(namespace, ()))
        return name in (self.service_account, *listed)


def parse_settings(document: Mapping[str, Any]) -> OperatorSettings:
    """Settings from a configuration file's values. Raises pydantic's ValidationError."""
    return OperatorSettings.model_validate_json(json.dumps(document))
