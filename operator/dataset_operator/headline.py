"""Choose the condition that summarises an experiment, for logs and people; no rule decides by it.

`status` derives the phase, one word for a column; the headline's message is the explanation.
"""

from __future__ import annotations

from dataset_operator.api import (
    ACCEPTED,
    CLUSTER_READY,
    COMPLETE,
    FAILED,
    INVALID_SPEC,
    SUSPENDED,
    SUSPENDED_BY_SPEC,
)
from dataset_operator.status import find_work
from pipeline_runtime.config import Condition, ExperimentStatus


def find_headline(status: ExperimentStatus) -> Condition | None:
    """Return the most important condition; None before the first pass."""
    for kind in (FAILED, COMPLETE, SUSPENDED):
        if status.is_true(kind):
            return status.find(kind)
    accepted = status.find(ACCEPTED)
    if accepted is not None and accepted.reason == INVALID_SPEC:
        return accepted
    work, ready = find_work(status), status.find(CLUSTER_READY)
    # The job is worth reporting once the cluster is up and, after a resume, an attempt has begun.
    is_reported = work is not None and work.reason != SUSPENDED_BY_SPEC
    if is_reported and (ready is None or ready.status == "True"):
        return work
    return ready or accepted
