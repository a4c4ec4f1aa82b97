"""What neither the models nor the API server see of a spec: expressions, and the platform's rules.

What needs the table, or Arrow (functions, columns and their types), only the driver can tell.
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
from dataset_operator.observed import Document
from dataset_operator.plan.draft import Draft
from pipeline_runtime.config import (
    DatasetExperiment,
    ManifestError,
    Problem,
    check_template_security,
    parse_stored,
    run_hash,
)
from pipeline_runtime.grammar import check_grammar

# Of all expressions of a spec together: 16 KiB take 3 ms, at worst 250 ms, and every experiment
# waits meanwhile. What is beyond is the driver's to parse.
MAX_EXPRESSION_CHARS = 128 << 10


def parse_wanted(draft: Draft) -> DatasetExperiment:
    """Return the experiment that is wanted now, without the fields that `draft.ignored` names.

    Raises ManifestError with every broken rule.
    """
    document, spared = _leave_out_accepted(draft)
    experiment, unknown = _parse_current(draft, document)
    # Those of metadata are a newer API server's, and concern nobody.
    draft.ignored = [path for path in unknown if path.startswith("spec.")]
    problems = [
        *check_grammar(experiment.spec, max_chars=MAX_EXPRESSION_CHARS),
        *_check_pods(draft, experiment),
    ]
    if problems:
        raise ManifestError(problems)
    return draft.parse(draft.observed.document) if spared else experiment


def _leave_out_accepted(draft: Draft) -> tuple[Document, bool]:
    """Return the document without templates that are as they were accepted, and whether it had any.

    Such a template is not judged again: a rule that is newer than the run, or an account that the
    settings no longer list, counts from the next edit of that template on.
    """
    document, accepted = dict(draft.observed.document), draft.accepted
    spec, is_spared = document.get("spec"), False
    if accepted is None or not isinstance(spec, dict):
        return document, False
    for role, field in SPEC_FIELDS.items():
        group = spec.get(field)
        template = group_of(accepted.spec, role).template
        if template and isinstance(group, dict) and group.get("template") == template:
            rest = {name: value for name, value in group.items() if name != "template"}
            spec, is_spared = {**spec, field: rest}, True
    return {**document, "spec": spec}, is_spared


def _parse_current(draft: Draft, document: Document) -> tuple[DatasetExperiment, list[str]]:
    """Parse the spec; one that asks for the run that was accepted is spared newer rules of URIs."""
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


def _check_pods(draft: Draft, experiment: DatasetExperiment) -> Iterator[Problem]:
    """Judge the pods as they would be made: a template is one part of them, and may hide another.

    Which account pods run as is the platform's to allow, by the operator's settings.
    """
    settings, namespace = draft.settings, draft.owner.namespace
    source = ClusterInput(owner=draft.owner, spec=experiment.spec, settings=settings)
    for role, field in SPEC_FIELDS.items():
        if not group_of(experiment.spec, role).template:
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
