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
from dataset_operator.autoscaling.interface import Decision, Verdict
from dataset_operator.plan.data_workers.draining import (
    LOOK_SECONDS,
    ask_for,
    count_wanted,
    find_group,
    is_leaving,
)
from dataset_operator.plan.data_workers.scaling import take_away, tell_change
from dataset_operator.plan.draft import Draft

# The ID is any word. Another ID makes the same number a new request.
_REQUEST = re.compile(r"([0-9]{1,6})/[-.:0-9A-Za-z]{1,64}")
_ID_CHARS = 16


def apply_request(draft: Draft) -> bool:
    """Bring the cluster to the requested number of data workers; never end the pass."""
    text = (draft.observed.document["metadata"].get("annotations") or {}).get(SCALE_ANNOTATION)
    if not isinstance(text, str) or find_group(draft) is None:
        return False
    mark = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_ID_CHARS]
    if (draft.status.get("scaleRequest") or {}).get("id") == mark:
        return False
    found = _REQUEST.fullmatch(text)
    if found is None:
        _refuse(draft, mark, "must be NUMBER/ID, such as 20/a1, as `lastmile scale` writes it")
        return False
    wanted, workers = int(found[1]), draft.cluster_spec.data_workers
    if not workers.min_replicas <= wanted <= workers.max_replicas:
        bounds = f"minReplicas ({workers.min_replicas}) to maxReplicas ({workers.max_replicas})"
        _refuse(draft, mark, f"must be from dataWorkers.{bounds}, got {wanted}")
    elif wanted == count_wanted(draft):
        _record(draft, mark, "Applied", f"{wanted} data workers")
    else:
        draft.is_scaling_requested = True
        draft.look_again(LOOK_SECONDS)
        if not draft.patches:
            _change(draft, wanted)
    return False


def _change(draft: Draft, wanted: int) -> None:
    before = count_wanted(draft)
    why = Verdict(workers=wanted, reason=SCALE_REQUESTED, message="requested by `lastmile scale`")
    answer = Decision(desired=wanted, recommended=why, active=why)
    if wanted < before:
        take_away(draft, answer, before)
    elif not is_leaving(draft):
        tell_change(draft, answer, before)
        ask_for(draft, wanted)


def _refuse(draft: Draft, mark: str, why: str) -> None:
    message = f"the annotation {SCALE_ANNOTATION} {why}; the number of data workers is unchanged"
    _record(draft, mark, "Refused", message)
    draft.tell(SCALE_REFUSED, message, warns=True)


def _record(draft: Draft, mark: str, state: Literal["Applied", "Refused"], message: str) -> None:
    request = {"id": mark, "time": draft.stamp(), "state": state, "message": message}
    draft.status["scaleRequest"] = request
