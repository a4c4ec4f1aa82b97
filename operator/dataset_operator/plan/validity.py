"""What neither the models nor the API server see of a spec: expressions, and the platform's rules.

What needs the table, or Arrow (functions, columns and their types), only the driver can tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataset_operator.plan.draft import Draft
from pipeline_runtime.config import (
    DatasetExperiment,
    ManifestError,
    Problem,
    parse_stored,
    run_hash,
)
from pipeline_runtime.grammar import check_grammar

# Of all expressions of a spec together: 16 KiB take 3 ms, at worst 250 ms, and every experiment
# waits meanwhile. What is beyond is the driver's to parse.
MAX_EXPRESSION_CHARS = 128 << 10
_ACCOUNT_FIELDS = ("serviceAccountName", "serviceAccount")


def parse_wanted(draft: Draft) -> DatasetExperiment:
    """The experiment as it is wanted now, but for what the draft's `ignored` then names.

    Raises ManifestError with every broken rule.
    """
    experiment, unknown = _parse_current(draft)
    # Those of metadata are a newer API server's, and concern nobody.
    draft.ignored = [path for path in unknown if path.startswith("spec.")]
    problems = [
        *check_grammar(experiment.spec, max_chars=MAX_EXPRESSION_CHARS),
        *_check_service_accounts(draft, experiment),
    ]
    if problems:
        raise ManifestError(problems)
    return experiment


def _parse_current(draft: Draft) -> tuple[DatasetExperiment, list[str]]:
    """Parse the spec; one that asks for the run that was accepted is spared newer rules."""
    document = dict(draft.observed.document)
    try:
        return parse_stored(document)
    except ManifestError:
        accepted = draft.accepted
        if accepted is None:
            raise
        experiment, unknown = parse_stored(document, was_accepted=True)
        if run_hash(experiment) != run_hash(accepted):
            raise
        return experiment, unknown


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
