"""Collects the problems of a spec that neither the models nor the API server find.

They are bad expressions (`readings` parses them) and pods that the platform does not allow. Checks
of functions, columns and types need Arrow or the table, so only the driver can make them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataset_operator.builders.pods import (
    SPEC_FIELDS,
    ClusterInput,
    build_pod_template,
    find_account,
    group_of,
)
from dataset_operator.plan.draft import Draft
from pipeline_runtime.config import (
    DatasetExperiment,
    ManifestError,
    Problem,
    check_template_security,
)


def parse_wanted(draft: Draft) -> DatasetExperiment:
    """Return the experiment as it is wanted now, and set `draft.ignored` to its unknown fields.

    Raises ManifestError with every broken rule.
    """
    reading = draft.current
    draft.ignored = reading.unknown
    problems = list(reading.problems)
    if reading.experiment is not None:
        problems += _check_pods(draft, reading.experiment)
    if problems or reading.experiment is None:
        raise ManifestError(problems)
    return reading.experiment


def _check_pods(draft: Draft, experiment: DatasetExperiment) -> Iterator[Problem]:
    """Check the pods as they would be created, since a template can replace parts of ours.

    The operator's settings list the service accounts that pods may run as.
    """
    spared = draft.find_spared_templates()
    settings, namespace = draft.settings, draft.owner.namespace
    source = ClusterInput(owner=draft.owner, spec=experiment.spec, settings=settings)
    for role, field in SPEC_FIELDS.items():
        if field in spared or not group_of(experiment.spec, role).template:
            continue
        pod, path = build_pod_template(source, role), f"spec.{field}.template"
        for at, message in check_template_security(path, pod):
            yield Problem(path=at, message=message)
        account = find_account(pod)
        is_ours = account == draft.owner.service_account and settings.service_account is None
        if not is_ours and not settings.allows_service_account(namespace, account):
            yield Problem(
                path=f"{path}.spec.serviceAccountName",
                message="must be a service account that the operator's settings "
                f"(serviceAccounts) allow in namespace {namespace}, but pods would run as "
                f"{account!r}; remove it or have it added there",
            )
