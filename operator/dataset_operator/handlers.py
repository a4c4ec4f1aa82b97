"""Kopf's handlers: every event only wakes a pass.

There are only handlers of raw events. Kopf keeps no progress, no finaliser and no copy of the spec
on the objects, and decides nothing. It gets only metadata (`kube.watching`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from dataset_operator.api import EXPERIMENT_LABEL, FIELD_MANAGER, RAY_API_VERSION
from dataset_operator.kube.bounds import PAGE_SIZE
from dataset_operator.scheduling.passes import Passes, Trigger
from dataset_operator.telemetry.watched import Watched
from pipeline_runtime.config import GROUP, VERSION

# Owned objects whose changes matter: edits and deletions by hand, pods that start and end.
_CHILDREN = (
    ("Pod", "v1", "pods"),
    ("ConfigMap", "v1", "configmaps"),
    ("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    ("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    ("RayCluster", RAY_API_VERSION, "rayclusters"),
)
# Records an event of an owned object (its kind, the event's type, the object); returns whether a
# pass is needed.
See = Callable[[str, str | None, Mapping[str, Any]], bool]
# Opens the session of Kopf's requests; called again if the API server refuses its credentials.
OpenSession = Callable[[], Awaitable[kopf.AiohttpSession]]
_OURS: dict[str, Any] = {EXPERIMENT_LABEL: kopf.PRESENT}


def build_registry(
    passes: Passes, watched: Watched, see: See, open_session: OpenSession
) -> kopf.OperatorRegistry:
    """Build handlers that wake an experiment for its own events and those of its objects."""
    registry = kopf.OperatorRegistry()

    async def wake(event: Mapping[str, Any], **_: object) -> None:
        if trigger := watched.see(event["type"], event["object"]):
            metadata = event["object"]["metadata"]
            passes.wake(metadata["namespace"], metadata["name"], trigger)

    async def wake_owner(
        *, event: Mapping[str, Any], labels: Mapping[str, str], param: Any = "", **_: object
    ) -> None:
        child = event["object"]
        if child["metadata"].get("namespace") and see(param, event["type"], child):
            namespace, name = child["metadata"]["namespace"], labels[EXPERIMENT_LABEL]
            if name:  # a tenant may write an empty label
                passes.wake(namespace, name, Trigger.CHANGE)

    async def log_in(**_: object) -> kopf.AiohttpSession:
        return await open_session()

    kopf.on.login(registry=registry)(log_in)
    kopf.on.event(GROUP, VERSION, "datasetexperiments", registry=registry)(wake)
    for kind, version, plural in _CHILDREN:
        kopf.on.event(version, plural, labels=_OURS, param=kind, registry=registry)(wake_owner)
    return registry


def build_kopf_settings() -> kopf.OperatorSettings:
    """Build Kopf's settings."""
    settings = kopf.OperatorSettings()
    # Scanning CRDs and namespaces needs a right over the whole cluster. `process` has checked the
    # CRDs. Deleting one ends its watch and the process, which cannot start again without the CRD.
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 360
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = PAGE_SIZE
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    # The API server selects, so other people's pods are neither sent nor read.
    for _, version, plural in _CHILDREN:
        settings.watching.label_selectors[version, plural] = EXPERIMENT_LABEL
    settings.posting.enabled = False  # `kube.execute` emits events, after their status
    settings.persistence.finalizer = f"{GROUP}/kopf"  # no handler needs one
    settings.posting.reporting_component = FIELD_MANAGER
    settings.execution.default_backoff = 15
    # Kopf would end the whole process by SIGKILL, which is for the process's owner to decide.
    settings.process.ultimate_exiting_timeout = None
    return settings
