"""What keeps an experiment's history: a sidecar in every pod, and a short pod at a cluster's end.

The sidecar copies Ray's log files to the store while they grow, and outlives a Ray container that
is killed. The short pod writes what only the operator can see, which it is given as an annotation.
Both have the credentials of the experiment's head, and no rights at the API server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dataset_operator.api import HISTORY_ANNOTATION, HISTORY_LABEL
from dataset_operator.builders.documents import Document, build_metadata
from dataset_operator.builders.name_servers import build_name_server_rules
from dataset_operator.builders.security import build_container_context, build_pod_context
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
    """The folder of a run's history, beside the folders of its runs."""
    return f"{artifacts_uri.rstrip('/')}/{HISTORY_FOLDER}/{run_id}"


def is_store(uri: str, ray: Mapping[str, Any]) -> bool:
    """Whether what is written there outlives a pod: another machine's, or a mounted volume's."""
    path = uri.removeprefix("file://")
    if not path.startswith("/"):
        return "://" in uri
    folders = [_path_of(mount) for mount in _mappings(_list(ray, "volumeMounts"))]
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders if folder)


def add_sidecar(pod: Document, uri: str, settings: OperatorSettings) -> Document:
    """A pod whose container 0 runs Ray, with the sidecar that copies what Ray's processes log.

    Args:
        uri: of the run's history.
    """
    spec = pod["spec"]
    ray, *others = spec["containers"]
    mounts, volumes = _list(ray, "volumeMounts"), _list(spec, "volumes")
    if mounts != (ray.get("volumeMounts") or []) or volumes != (spec.get("volumes") or []):
        return pod  # not even lists: the API server is to see it, and to refuse it
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
    """The pod that writes a cluster's history, made from the template of its head.

    The image is the operator's own choice, since an older one of the experiment's may not know the
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
    """One that has the environment of the Ray container, where the store's keys are."""
    return {
        "image": settings.runtime_image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": _list(ray, "env"),
        "envFrom": _list(ray, "envFrom"),
        "resources": _RESOURCES,
        "securityContext": build_container_context(),
    }


def _list(holder: Mapping[str, Any], field: str) -> list[Any]:
    """Of a user's template, which the API server has not judged yet."""
    found = holder.get(field)
    return list(found) if isinstance(found, list) else []


def _mappings(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, Mapping)]


def _is_shared(mount: Mapping[str, Any]) -> bool:
    return not _path_of(mount).startswith("/dev/")


def _path_of(mount: Mapping[str, Any]) -> str:
    return str(mount.get("mountPath", "")).rstrip("/")


def build_history_policy(owner: Owner, network: NetworkSettings) -> Document:
    """Nobody reaches the short pod; where egress is closed, it reaches what experiments may."""
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
    """A payload as JSON that an annotation has room for: the oldest events are left out first."""
    events = list(payload.get("events") or ())
    while True:
        cut = len(payload.get("events") or ()) - len(events)
        text = json.dumps({**payload, "events": events, "eventsCut": cut}, separators=(",", ":"))
        if len(text) <= MAX_PAYLOAD_BYTES or not events:
            return text if len(text) <= MAX_PAYLOAD_BYTES else _cut_experiment(payload, cut)
        events = events[max(1, len(events) // 8) :]


def _cut_experiment(payload: Mapping[str, Any], cut: int) -> str:
    """Without the spec, which the driver has left in the run's folder; a status is small."""
    metadata = (payload.get("experiment") or {}).get("metadata", {})
    experiment = {"metadata": metadata, "spec": {}}
    kept = {**payload, "events": [], "pods": [], "eventsCut": cut, "experiment": experiment}
    return json.dumps(kept, separators=(",", ":"))
