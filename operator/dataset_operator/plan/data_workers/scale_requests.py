"""The rule that carries out a request of `lastmile scale` for a number of data workers, once.

`lastmile scale` writes the annotation `…/scale` of the experiment, `NUMBER/ID`. The operator brings
the RayCluster to that number, within the spec's bounds, and then records the request in
`status.scaleRequest`: the same annotation changes nothing again, and the autoscaler goes on from
that number. Workers that are taken away are drained first, which may take several passes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from dataset_operator.api import SCALE_ANNOTATION, SCALE_REFUSED, SCALE_REQUESTED
from dataset_operator.autoscaling.interface import Decision
from dataset_operator.autoscaling.interface import Verdict as Recommendation
from dataset_operator.plan.data_workers.changes import add_workers, remove_workers
from dataset_operator.plan.draining import (
    LOOK_SECONDS,
    count_wanted,
    find_data_workers,
    find_group,
    is_leaving,
)
from dataset_operator.plan.outcome import Patch
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import NOTHING, Verdict, change, look_again, record_event
from pipeline_runtime.config import ScaleRequestStatus

# The ID is any word. Another ID makes the same number a new request.
_REQUEST = re.compile(r"([0-9]{1,6})/[-.:0-9A-Za-z]{1,64}")
_ID_CHARS = 16


def apply_request(situation: Situation) -> Verdict | None:
    """Bring the cluster to the requested number of data workers; never end the pass."""
    text = _find_request(situation)
    if text is None:
        return None
    wanted = _parse_number(text)
    if wanted is None:
        why = "must be NUMBER/ID, such as 20/a1, as `lastmile scale` writes it"
        return _refuse(situation, text, why)
    workers = situation.cluster_spec.data_workers
    if not workers.min_replicas <= wanted <= workers.max_replicas:
        bounds = f"minReplicas ({workers.min_replicas}) to maxReplicas ({workers.max_replicas})"
        return _refuse(situation, text, f"must be from dataWorkers.{bounds}, got {wanted}")
    if wanted == count_wanted(situation, find_data_workers(situation)):
        return _record(situation, text, "Applied", f"{wanted} data workers")
    soon = look_again(LOOK_SECONDS)
    return soon if situation.will(Patch) else soon + _carry_out(situation, wanted)


def is_scaling_requested(situation: Situation) -> bool:
    """Return whether a user's request is in progress, during which the policy does not decide.

    `apply_request` has recorded every other request, in this pass or in an earlier one.
    """
    return _find_request(situation) is not None


def _find_request(situation: Situation) -> str | None:
    """Return the annotation of a request that was neither applied nor refused yet."""
    text = (situation.observed.document["metadata"].get("annotations") or {}).get(SCALE_ANNOTATION)
    if not isinstance(text, str) or find_group(situation, find_data_workers(situation)) is None:
        return None
    known = situation.status.scale_request
    return None if known is not None and known.id == _digest(text) else text


def _parse_number(text: str) -> int | None:
    found = _REQUEST.fullmatch(text)
    return None if found is None else int(found[1])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_ID_CHARS]


def _carry_out(situation: Situation, wanted: int) -> Verdict:
    group = find_data_workers(situation)
    before = count_wanted(situation, group)
    why = Recommendation(
        workers=wanted, reason=SCALE_REQUESTED, message="requested by `lastmile scale`"
    )
    answer = Decision(desired=wanted, recommended=why, active=why)
    if wanted < before:
        return remove_workers(situation, answer, before)
    return NOTHING if is_leaving(situation, group) else add_workers(situation, answer, before)


def _refuse(situation: Situation, text: str, why: str) -> Verdict:
    message = f"the annotation {SCALE_ANNOTATION} {why}; the number of data workers is unchanged"
    refused = _record(situation, text, "Refused", message)
    return refused + record_event(SCALE_REFUSED, message, warns=True)


def _record(
    situation: Situation, text: str, state: Literal["Applied", "Refused"], message: str
) -> Verdict:
    request = ScaleRequestStatus(
        id=_digest(text), time=situation.stamp, state=state, message=message
    )
    return change(scale_request=request)
