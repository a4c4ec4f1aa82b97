"""The platform's rules for pods, checked on the objects that are about to be applied.

`validity` checks the user's spec, early and under the names of its fields. This is the last check
before the executor. It covers everything that a cluster is rendered from: a spec that an earlier
version accepted, and the parts that were merged into a user's template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dataset_operator.documents import Document
from dataset_operator.names import Owner
from dataset_operator.observed import Refusal
from dataset_operator.settings import OperatorSettings
from pipeline_runtime.config import Problem, check_template_security

_ACCOUNT_FIELDS = ("serviceAccountName", "serviceAccount")
_NO_ACCOUNT = "default"  # the account of a pod that names none (Kubernetes, ServiceAccount plugin)
_MAX_NAMED = 3


def find_refusal(owner: Owner, settings: OperatorSettings, cluster: Document) -> Refusal | None:
    """Return why a RayCluster must not be created; None if it may be."""
    why = find_forbidden(owner, settings, cluster)
    return Refusal(message=why, is_invalid=True) if why else None


def find_forbidden(owner: Owner, settings: OperatorSettings, document: Document) -> str:
    """Return the fields of a RayCluster or Pod that the platform does not allow; "" if none."""
    found = [
        str(problem)
        for path, template in _find_templates(document)
        for problem in find_problems(owner, settings, path, template)
    ]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return "; ".join(found[:_MAX_NAMED]) + more


def find_problems(
    owner: Owner, settings: OperatorSettings, path: str, template: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield every field of a pod template that the platform does not allow.

    Args:
        path: path of the template in its document.
    """
    for field, message in check_template_security(path, dict(template)):
        yield Problem(path=field, message=message)
    pod = template["spec"]
    for name in [pod[field] for field in _ACCOUNT_FIELDS if pod.get(field)] or [_NO_ACCOUNT]:
        is_own = name == (settings.service_account or owner.service_account)
        if not is_own and not settings.allows_service_account(owner.namespace, name):
            yield Problem(
                path=f"{path}.spec.serviceAccountName",
                message="must be a service account that the operator's settings "
                f"(serviceAccounts) allow in namespace {owner.namespace}, but pods would run as "
                f"{name!r}; remove it or have it added there",
            )


def _find_templates(document: Document) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if document["kind"] == "Pod":
        yield "Pod", document
        return
    spec = document["spec"]
    if head := spec.get("headGroupSpec"):
        yield "spec.headGroupSpec.template", head["template"]
    for index, group in enumerate(spec.get("workerGroupSpecs") or ()):
        yield f"spec.workerGroupSpecs[{index}].template", group["template"]
