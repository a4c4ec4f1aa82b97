"""Names and labels of everything that belongs to an experiment, each derived in one place.

An experiment's name has at most 40 characters (by CEL), so every name here fits its bound without
being cut. The owner's uid is in them: an experiment that is deleted and applied again does not meet
the children of the first, which may still be going.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataset_operator.api import (
    DATA_WORKERS,
    EXPERIMENT_LABEL,
    HEAD,
    ROLE_LABEL,
    TRAINERS,
    Role,
)

# KubeRay's bound; it derives Services and pods from it (ray-operator, MaxRayClusterNameLength).
MAX_RAY_CLUSTER_NAME_CHARS = 53
_UID_CHARS = 5  # as many as Kubernetes' own suffixes: 1 in a million for two of one name
# Of a run's id: the store is shared with other namespaces, other clusters and what was deleted.
_RUN_UID_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The experiment that children belong to."""

    name: str
    namespace: str
    uid: str

    @classmethod
    def of(cls, experiment: Mapping[str, Any]) -> Owner:
        """The experiment that the API server has."""
        metadata = experiment["metadata"]
        return cls(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])

    @property
    def ray_cluster(self) -> str:
        """The RayCluster, and the stem of its pods and Services."""
        return f"{self.name}-{self.uid.replace('-', '')[:_UID_CHARS]}"

    @property
    def head_service(self) -> str:
        """The head's Service, as KubeRay derives it (GenerateHeadServiceName)."""
        return f"{self.ray_cluster}-head-svc"

    @property
    def token_secret(self) -> str:
        """The Secret with Ray's token."""
        return f"{self.ray_cluster}-token"

    @property
    def service_account(self) -> str:
        """The service account of the cluster's pods, where the settings name none."""
        return f"{self.ray_cluster}-pods"

    @property
    def network_policy(self) -> str:
        """The NetworkPolicy of the cluster's pods."""
        return self.ray_cluster

    @property
    def history_policy(self) -> str:
        """The NetworkPolicy of the pods that keep the history."""
        return f"{self.ray_cluster}-history"

    def history_pod(self, run: int, attempt: int) -> str:
        """The pod that keeps the history of a cluster, by when in the experiment's life it ends."""
        return f"{self.ray_cluster}-history-{run}-{attempt}"

    def disruption_budget(self, role: Role) -> str:
        """The PodDisruptionBudget of one role's pods."""
        return f"{self.ray_cluster}-{role}"

    @property
    def guards(self) -> tuple[tuple[str, str], ...]:
        """Kind and name of the children that guard the cluster's pods."""
        budgets = (HEAD, TRAINERS, DATA_WORKERS)
        return (
            ("ServiceAccount", self.service_account),
            ("NetworkPolicy", self.network_policy),
            *(("PodDisruptionBudget", self.disruption_budget(role)) for role in budgets),
        )

    def config_map(self, run: int, run_hash: str) -> str:
        """The immutable copy of one run's config; runs of one hash may differ in their cluster."""
        return f"{self.ray_cluster}-{run}-{run_hash}"

    @property
    def accepted(self) -> str:
        """The experiment as the present run last took it, edits included."""
        return f"{self.ray_cluster}-accepted"

    def submission_id(self, attempt: int) -> str:
        """Ray's id of an attempt: the same again for a repeated submission of it."""
        return f"{self.name}-{self.uid}-{attempt}"

    def run_id(self, run: int) -> str:
        """What the attempts of one run share, and no other run of any experiment."""
        return f"{self.uid.replace('-', '')[:_RUN_UID_CHARS]}-{run}"

    def labels(self, role: Role | None = None) -> dict[str, str]:
        """Labels of a child; of a pod, with its role."""
        labels = {
            "app.kubernetes.io/name": "lastmile",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "lastmile-operator",
            EXPERIMENT_LABEL: self.name,
        }
        return labels if role is None else labels | {ROLE_LABEL: role}
