"""The one condition that says how an experiment stands, for logs and people; nothing decides by it.

`status` derives the phase, one word for a column; this is the sentence behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataset_operator.api import (
    ACCEPTED,
    CLUSTER_READY,
    COMPLETE,
    FAILED,
    INVALID_SPEC,
    SUSPENDED,
    SUSPENDED_BY_SPEC,
)
from dataset_operator.status import find_condition, find_work, is_true


def find_headline(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition to tell first; None before the first pass."""
    for kind in (FAILED, COMPLETE, SUSPENDED):
        if is_true(status, kind):
            return find_condition(status, kind)
    accepted = find_condition(status, ACCEPTED)
    if accepted is not None and accepted["reason"] == INVALID_SPEC:
        return accepted
    work, ready = find_work(status), find_condition(status, CLUSTER_READY)
    # Of a job there is something to say only once the cluster is up; after a resume not at once.
    is_told = work is not None and work["reason"] != SUSPENDED_BY_SPEC
    if is_told and (ready is None or ready["status"] == "True"):
        return work
    return ready or accepted
