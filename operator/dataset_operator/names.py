"""Derives the names and labels of everything that belongs to an experiment.

An experiment's name has at most 40 characters (a CEL rule), so no name here has to be cut. Names
contain the experiment's uid: if an experiment is deleted and created again, its objects do not
collide with those of the first, which may still be in deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataset_operator.api import EXPERIMENT_LABEL, ROLE_LABEL, Role
from dataset_operator.groups import GROUPS, HEAD_GROUP, Groups

# KubeRay's bound, which leaves room for the names of Services and pods (MaxRayClusterNameLength).
MAX_RAY_CLUSTER_NAME_CHARS = 53
_UID_CHARS = 5  # as in Kubernetes' own suffixes; two uids agree 1 time in a million
# More for run ids: namespaces, clusters and deleted experiments may share a store.
_RUN_UID_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The experiment that owns an object."""

    name: str
    namespace: str
    uid: str

    @classmethod
    def of(cls, experiment: Mapping[str, Any]) -> Owner:
        """Build the owner from an experiment of the API server."""
        metadata = experiment["metadata"]
        return cls(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])

    @property
    def ray_cluster(self) -> str:
        """Name of the RayCluster, and prefix of its pods and Services."""
        return f"{self.name}-{self.uid.replace('-', '')[:_UID_CHARS]}"

    @property
    def head_service(self) -> str:
        """Name of the head's Service, as KubeRay derives it (GenerateHeadServiceName)."""
        return f"{self.ray_cluster}-head-svc"

    @property
    def token_secret(self) -> str:
        """Name of the Secret with Ray's token."""
        return f"{self.ray_cluster}-token"

    @property
    def service_account(self) -> str:
        """Name of the service account of the cluster's pods, unless the settings name one."""
        return f"{self.ray_cluster}-pods"

    @property
    def network_policy(self) -> str:
        """Name of the NetworkPolicy of the cluster's pods."""
        return self.ray_cluster

    @property
    def history_policy(self) -> str:
        """Name of the NetworkPolicy of history pods."""
        return f"{self.ray_cluster}-history"

    def history_pod(self, run: int, attempt: int) -> str:
        """Return the name of the history pod of a cluster that ends in this run and attempt."""
        return f"{self.ray_cluster}-history-{run}-{attempt}"

    def disruption_budget(self, role: Role) -> str:
        """Return the name of the PodDisruptionBudget of a role's pods."""
        return f"{self.ray_cluster}-{role}"

    def list_guards(self, groups: Groups = GROUPS) -> tuple[tuple[str, str], ...]:
        """Return kind and name of the account, policy and budgets of the cluster's pods."""
        roles = [kind.role for kind in (HEAD_GROUP, *groups) if kind.has_budget]
        return (
            ("ServiceAccount", self.service_account),
            ("NetworkPolicy", self.network_policy),
            *(("PodDisruptionBudget", self.disruption_budget(role)) for role in roles),
        )

    def config_map(self, run: int, run_hash: str) -> str:
        """Return the name of the immutable copy of a run's config; runs may have the same hash."""
        return f"{self.ray_cluster}-{run}-{run_hash}"

    @property
    def accepted(self) -> str:
        """Name of the ConfigMap with the experiment that the present run last accepted."""
        return f"{self.ray_cluster}-accepted"

    def submission_id(self, attempt: int) -> str:
        """Return the Ray job id of an attempt; a repeated submission has the same id."""
        return f"{self.name}-{self.uid}-{attempt}"

    def run_id(self, run: int) -> str:
        """Return the id that all attempts of a run share, and no other run of any experiment."""
        return f"{self.uid.replace('-', '')[:_RUN_UID_CHARS]}-{run}"

    def labels(self, role: Role | None = None) -> dict[str, str]:
        """Return the labels of an owned object; for a pod, give its role."""
        labels = {
            "app.kubernetes.io/name": "lastmile",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "lastmile-operator",
            EXPERIMENT_LABEL: self.name,
        }
        return labels if role is None else labels | {ROLE_LABEL: role}
