"""Builds the pod templates of a cluster's roles: defaults, user's template, locked fields.

Each layer overrides the previous one (`template_merge`). `pipeline_runtime.config` refuses
templates with forbidden fields before. Without a user's template, every pod meets the `restricted`
level of the Pod Security Standards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset_operator.api import (
    CLIENT_PORT,
    DASHBOARD_PORT,
    GCS_PORT,
    HEAD,
    RAY_METRICS_PORT,
    RUNTIME_METRICS_PORT,
    Role,
)
from dataset_operator.builders.history_writers import add_sidecar
from dataset_operator.builders.security import build_container_context, build_pod_context
from dataset_operator.builders.shared_parts import Document
from dataset_operator.builders.template_merge import merge
from dataset_operator.groups import GROUPS, Group, Groups, resolve_roles
from dataset_operator.names import Owner
from dataset_operator.settings import OperatorSettings
from pipeline_runtime.config import (
    RAY_CONTAINER,
    ExperimentSpec,
    Resources,
    parse_quantity,
)

_SHM = "shared-memory"
_HEAD_PORTS = {
    "gcs": GCS_PORT,
    "dashboard": DASHBOARD_PORT,
    "client": CLIENT_PORT,
    "lastmile": RUNTIME_METRICS_PORT,  # the driver serves the metrics of all ranks there
}
_ALL_PORTS = {"metrics": RAY_METRICS_PORT}
# Ends Ray's processes in order, so that the head learns at once that the node leaves.
_STOP_COMMAND = ["ray", "stop", "--grace-period", "30"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInput:
    """Everything that a cluster is rendered from.

    Attributes:
        spec_hash: result of `hash_cluster_side`; None: it is not known yet.
        history_uri: folder of the run's history; None: none is stored.
        replicas: number of pods of groups that a policy scales; absent: their initial number.
        groups: the table of worker groups.
    """

    owner: Owner
    spec: ExperimentSpec
    settings: OperatorSettings
    spec_hash: str | None = None
    history_uri: str | None = None
    replicas: Mapping[Role, int] = field(default_factory=dict)
    groups: Groups = GROUPS

    def find_group(self, role: Role) -> Group:
        """Return the group of a role; the spec's cluster must have it."""
        found = resolve_roles(self.spec, self.groups)
        return next(group for group in found if group.role == role)


def build_pod_template(cluster: ClusterInput, role: Role) -> Document:
    """Build the template of one role's pods; container 0 runs Ray."""
    group = cluster.find_group(role)
    mine = merge(_build_defaults(cluster, group), group.pods.section.template)
    pod = merge(mine, _build_locked(cluster, group, _find_account(mine)))
    if cluster.history_uri is None:
        return pod
    return add_sidecar(pod, cluster.history_uri, cluster.settings)


def _find_account(template: Mapping[str, Any]) -> Any:
    """Return the service account that Kubernetes would run a template's pods as.

    A template without a name runs as `default`, the account of the namespace.
    """
    pod = template.get("spec")
    pod = pod if isinstance(pod, Mapping) else {}
    return pod.get("serviceAccountName") or pod.get("serviceAccount") or "default"


def _build_defaults(cluster: ClusterInput, group: Group) -> Document:
    spec, settings = cluster.spec, cluster.settings
    defaults = settings.resources.get(group.kind)
    resources = resolve_resources(defaults, group.pods.section.resources)
    pod: Document = {
        "containers": [_build_ray_container(cluster, resources)],
        "enableServiceLinks": False,
        "securityContext": build_pod_context(settings),
        "terminationGracePeriodSeconds": settings.termination_grace_seconds,
        "volumes": [_build_shared_memory(resources, settings.shared_memory_percent)],
    }
    optional: Document = {
        "serviceAccountName": settings.service_account or cluster.owner.service_account,
        "imagePullSecrets": [ref.to_document() for ref in spec.image_pull_secrets],
        "tolerations": list(settings.tolerations),
    }
    return {"spec": pod | {key: value for key, value in optional.items() if value}}


def _build_ray_container(cluster: ClusterInput, resources: Document) -> Document:
    # No probes: KubeRay adds its own to container 0, for the ports and the start-up time of its
    # version (KubeRay, ENABLE_PROBES_INJECTION).
    spec, settings = cluster.spec, cluster.settings
    secrets = [spec.storage.secret_ref.name] if spec.storage.secret_ref else []
    if not secrets and settings.storage_secret:
        secrets = [settings.storage_secret]
    env_from: list[Document] = [{"secretRef": {"name": name}} for name in secrets]
    env_from += [
        # pyiceberg reads its properties from variables of this form, and "_" as "-" in names.
        {
            "prefix": f"PYICEBERG_CATALOG__{catalog.name.upper().replace('-', '_')}__",
            "secretRef": catalog.secret_ref.to_document(),
        }
        for catalog in spec.used_catalogs
        if catalog.secret_ref
    ]
    return {
        "name": RAY_CONTAINER,
        "image": spec.image or settings.runtime_image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": [variable.to_document() for variable in spec.env],
        "envFrom": [*env_from, *(source.to_document() for source in spec.env_from)],
        "lifecycle": {"preStop": {"exec": {"command": _STOP_COMMAND}}},
        "resources": resources,
        "securityContext": build_container_context(),
        "volumeMounts": [{"name": _SHM, "mountPath": "/dev/shm"}],
    }


def resolve_resources(defaults: Resources, wanted: Resources) -> Document:
    """Combine requests and limits; a resource that the spec names gets no default in either."""
    named = {*wanted.requests, *wanted.limits}
    resolved = {}
    for part in ("requests", "limits"):
        kept = {k: v for k, v in getattr(defaults, part).items() if k not in named}
        resolved[part] = kept | dict(getattr(wanted, part))
    return resolved


def _build_shared_memory(resources: Mapping[str, Any], percent: int) -> Document:
    """Build the volume for /dev/shm, where Ray's object store takes 30 % of a node's memory.

    The default of 64 MiB is too small. The pages count as memory of the pod, so the size is limited
    unless the pod has no memory limit and request.
    """
    volume: Document = {"name": _SHM, "emptyDir": {"medium": "Memory"}}
    memory = resources["limits"].get("memory") or resources["requests"].get("memory")
    num_bytes = parse_quantity(memory) if memory else None
    if num_bytes:
        volume["emptyDir"]["sizeLimit"] = str(int(num_bytes * percent / 100))
    return volume


def _build_locked(cluster: ClusterInput, group: Group, account: Any) -> Document:
    """Build the fields that no template can change: labels, ports, environment, GPUs, account.

    Args:
        account: the service account of the pods, which replaces both fields of a template.
    """
    role = group.role
    container: Document = {
        "name": RAY_CONTAINER,
        "ports": _build_ports(role),
        "env": [
            {"name": "LASTMILE_ROLE", "value": role},
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        ],
    }
    gpus, resource = group.pods.gpus, cluster.settings.gpu_resource
    if gpus and resource:
        counted = {resource: str(gpus)}
        container["resources"] = {"requests": counted, "limits": counted}
    pod: Document = {
        "automountServiceAccountToken": False,
        "serviceAccountName": account,
        "serviceAccount": None,  # the deprecated alias
        "containers": [container],
    }
    if role == HEAD:
        # A head that restarts in place has lost its jobs, but looks like the same head. A new pod
        # is recognized as a new head.
        pod["restartPolicy"] = "Never"
    return {"metadata": {"labels": cluster.owner.labels(role)}, "spec": pod}


def _build_ports(role: Role) -> list[Document]:
    ports = (_HEAD_PORTS if role == HEAD else {}) | _ALL_PORTS
    return [{"name": name, "containerPort": number} for name, number in ports.items()]
