"""What neither the models nor the API server see of a spec: expressions, and the platform's rules.

What needs the table, or Arrow (functions, columns and their types), only the driver can tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataset_operator.plan.draft import Draft
from pipeline_runtime.config import DatasetExperiment, ManifestError, Problem

_ACCOUNT_FIELDS = ("serviceAccountName", "serviceAccount")


def parse_wanted(draft: Draft) -> DatasetExperiment:
    """Return the experiment as it is wanted now, and set `draft.ignored` to its unknown fields.

    Raises ManifestError with every broken rule.
    """
    reading = draft.current
    draft.ignored = reading.unknown
    problems = list(reading.problems)
    if reading.experiment is not None:
        problems += _check_service_accounts(draft, reading.experiment)
    if problems or reading.experiment is None:
        raise ManifestError(problems)
    return reading.experiment


def _check_service_accounts(draft: Draft, experiment: DatasetExperiment) -> Iterator[Problem]:
    """Which account pods run as is the platform's to allow, by the operator's settings."""
    spec, namespace = experiment.spec, draft.owner.namespace
    roles = {"head": spec.head, "trainers": spec.trainers, "dataWorkers": spec.data_workers}
    for role, group in roles.items():
        pod = group.template.get("spec")
        for field in _ACCOUNT_FIELDS:
            name = pod.get(field) if isinstance(pod, dict) else None
            if name and not draft.settings.allows_service_account(namespace, str(name)):
                yield Problem(
                    path=f"spec.{role}.template.spec.{field}",
                    message="must be a service account that the operator's settings "
                    f"(serviceAccounts) allow in namespace {namespace}, got {name!r}; remove it "
                    "or have it added there",
                )
