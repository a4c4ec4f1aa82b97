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
    TRAINING,
)
from dataset_operator.status import find_condition, is_true


def find_headline(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition to tell first; None before the first pass."""
    for kind in (FAILED, COMPLETE, SUSPENDED):
        if is_true(status, kind):
            return find_condition(status, kind)
    accepted = find_condition(status, ACCEPTED)
    if accepted is not None and accepted["reason"] == INVALID_SPEC:
        return accepted
    training, ready = (find_condition(status, kind) for kind in (TRAINING, CLUSTER_READY))
    # Of a job there is something to say only once the cluster is up; after a resume not at once.
    is_told = training is not None and training["reason"] != SUSPENDED_BY_SPEC
    if is_told and (ready is None or ready["status"] == "True"):
        return training
    return ready or accepted
