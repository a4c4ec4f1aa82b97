"""Builds the writers of an experiment's history: a sidecar in every pod, and the history pod.

The sidecar copies Ray's log files to the store while they grow, and survives a Ray container that
is killed. The history pod runs at the end of a cluster and writes what only the operator observes,
which an annotation passes to it. Both have the store credentials of the Ray container, and no
rights at the API server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dataset_operator.api import HISTORY_ANNOTATION, HISTORY_LABEL
from dataset_operator.builders.name_servers import build_name_server_rules
from dataset_operator.builders.security import build_container_context, build_pod_context
from dataset_operator.builders.shared_parts import Document, build_metadata
from dataset_operator.names import Owner
from dataset_operator.settings import NetworkSettings, OperatorSettings

HISTORY_FOLDER = "history"
LOGS_CONTAINER = "lastmile-logs"
RAY_FOLDER = "/tmp/ray"  # where Ray keeps its processes' logs
_LOGS_VOLUME = "ray-logs"  # KubeRay's own name for it
_POD_VOLUME = "pod"
_POD_FOLDER = "/etc/lastmile-history"
_PAYLOAD_FILE = "payload.json"
_COMMAND = ["python3", "-m", "pipeline_runtime"]
_RESOURCES = {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
# All annotations together may have 256 KiB (Kubernetes, TotalAnnotationSizeLimitB).
MAX_PAYLOAD_BYTES = 128 << 10
_NAME_VARIABLE = "LASTMILE_POD"


def locate_history(artifacts_uri: str, run_id: str) -> str:
    """Return the URI of a run's history folder, beside the folders of the runs."""
    return f"{artifacts_uri.rstrip('/')}/{HISTORY_FOLDER}/{run_id}"


def is_store(uri: str, ray: Mapping[str, Any]) -> bool:
    """Return whether data at a URI outlives a pod: it is a remote store or on a mounted volume."""
    path = uri.removeprefix("file://")
    if not path.startswith("/"):
        return "://" in uri
    folders = [_path_of(mount) for mount in _mappings(_list(ray, "volumeMounts"))]
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders if folder)


def add_sidecar(pod: Document, uri: str, settings: OperatorSettings) -> Document:
    """Add the sidecar that copies the logs of Ray's processes; container 0 of the pod runs Ray.

    Args:
        uri: the folder of the run's history.
    """
    spec = pod["spec"]
    ray, *others = spec["containers"]
    mounts, volumes = _list(ray, "volumeMounts"), _list(spec, "volumes")
    if mounts != (ray.get("volumeMounts") or []) or volumes != (spec.get("volumes") or []):
        return pod  # they are no lists: leave it to the API server to refuse them
    logs = next((m for m in _mappings(mounts) if _path_of(m) == RAY_FOLDER), None)
    if logs is None:
        logs = {"name": _LOGS_VOLUME, "mountPath": RAY_FOLDER}
        mounts.append(logs)
        volumes.append({"name": _LOGS_VOLUME, "emptyDir": {}})
    sidecar = _build_container(ray, settings) | {
        "name": LOGS_CONTAINER,
        "restartPolicy": "Always",
        "command": [
            *_COMMAND,
            *("keep-logs", "--from", RAY_FOLDER, "--to", f"{uri}/logs/$({_NAME_VARIABLE})"),
            *("--every", str(settings.history.copy_seconds)),
        ],
        "volumeMounts": [
            {**m, "readOnly": True} if m == logs else m for m in _mappings(mounts) if _is_shared(m)
        ],
    }
    name = {"fieldRef": {"fieldPath": "metadata.name"}}
    sidecar["env"] = [*sidecar["env"], {"name": _NAME_VARIABLE, "valueFrom": name}]
    init = [sidecar, *_list(spec, "initContainers")]
    containers = [{**ray, "volumeMounts": mounts}, *others]
    return {
        **pod,
        "spec": {**spec, "initContainers": init, "containers": containers, "volumes": volumes},
    }


def build_history_pod(
    owner: Owner, name: str, template: Document, settings: OperatorSettings, task: HistoryTask
) -> Document:
    """Build the pod that writes a cluster's history, from the template of its head.

    It runs the operator's runtime image, since an older image of the experiment may not have the
    command.
    """
    spec = template["spec"]
    container = _build_container(spec["containers"][0], settings) | {
        "name": "history",
        "command": [
            *_COMMAND,
            *("keep-history", "--payload", f"{_POD_FOLDER}/{_PAYLOAD_FILE}"),
            *("--artifacts", task["artifacts"], "--run-id", task["runId"]),
            *("--keep-days", str(settings.history.keep_days)),
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    ray = spec["containers"][0]
    mounts = [m for m in _mappings(_list(ray, "volumeMounts")) if _is_shared(m)]
    used = [mount.get("name") for mount in mounts]  # of any type in a template
    container["volumeMounts"] = [*mounts, {"name": _POD_VOLUME, "mountPath": _POD_FOLDER}]
    payload = {
        "path": _PAYLOAD_FILE,
        "fieldRef": {"fieldPath": f"metadata.annotations['{HISTORY_ANNOTATION}']"},
    }
    kept = ("serviceAccountName", "imagePullSecrets", "tolerations", "nodeSelector")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **build_metadata(owner, name),
            "labels": owner.labels() | {HISTORY_LABEL: owner.ray_cluster},
            "annotations": {HISTORY_ANNOTATION: fit_payload(task["payload"])},
        },
        "spec": {
            **{field: spec[field] for field in kept if field in spec},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": settings.history.timeout_seconds,
            "securityContext": spec.get("securityContext") or build_pod_context(settings),
            "containers": [container],
            "volumes": [
                *(v for v in _mappings(_list(spec, "volumes")) if v.get("name") in used),
                {"name": _POD_VOLUME, "downwardAPI": {"items": [payload]}},
            ],
        },
    }


HistoryTask = Mapping[str, Any]  # artifacts, runId, payload


def _build_container(ray: Mapping[str, Any], settings: OperatorSettings) -> Document:
    """Build a container with the environment of the Ray container, which has the store's keys."""
    return {
        "image": settings.runtime_image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": _list(ray, "env"),
        "envFrom": _list(ray, "envFrom"),
        "resources": _RESOURCES,
        "securityContext": build_container_context(),
    }


def _list(holder: Mapping[str, Any], field: str) -> list[Any]:
    """Return a copy of a list in a template; empty if a user's template has another type there."""
    found = holder.get(field)
    return list(found) if isinstance(found, list) else []


def _mappings(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, Mapping)]


def _is_shared(mount: Mapping[str, Any]) -> bool:
    return not _path_of(mount).startswith("/dev/")


def _path_of(mount: Mapping[str, Any]) -> str:
    return str(mount.get("mountPath", "")).rstrip("/")


def build_history_policy(owner: Owner, network: NetworkSettings) -> Document:
    """Build the policy of history pods: no ingress; egress as the settings allow it."""
    spec: Document = {
        "podSelector": {"matchLabels": {HISTORY_LABEL: owner.ray_cluster}},
        "policyTypes": ["Ingress"],
    }
    if network.egress is not None:
        spec["policyTypes"].append("Egress")
        spec["egress"] = [*build_name_server_rules(network), *network.egress]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": build_metadata(owner, owner.history_policy),
        "spec": spec,
    }


def fit_payload(payload: Mapping[str, Any]) -> str:
    """Return a payload as JSON that fits an annotation; the oldest events are dropped first."""
    events = list(payload.get("events") or ())
    while True:
        cut = len(payload.get("events") or ()) - len(events)
        text = json.dumps({**payload, "events": events, "eventsCut": cut}, separators=(",", ":"))
        if len(text) <= MAX_PAYLOAD_BYTES or not events:
            return text if len(text) <= MAX_PAYLOAD_BYTES else _cut_experiment(payload, cut)
        events = events[max(1, len(events) // 8) :]


def _cut_experiment(payload: Mapping[str, Any], cut: int) -> str:
    """Drop the spec, which is in the run's folder too, with events and pods; a status is small."""
    metadata = (payload.get("experiment") or {}).get("metadata", {})
    experiment = {"metadata": metadata, "spec": {}}
    kept = {**payload, "events": [], "pods": [], "eventsCut": cut, "experiment": experiment}
    return json.dumps(kept, separators=(",", ":"))
