"""Sets the condition Materialized by the last report about the step `materialize`.

True      the table has all rows: it had them (`Hit`), or the run has computed some (`Computed`)
False     some are missing: an attempt computes them (`Computing`), or none runs (`Incomplete`)
Unknown   no attempt of the run has reported (`NotReported`)
"""

from __future__ import annotations

from dataset_operator.api import (
    COMPLETE,
    COMPUTED,
    COMPUTING,
    HIT,
    INCOMPLETE,
    MATERIALIZED,
    NOT_REPORTED,
)
from dataset_operator.documents import Document
from dataset_operator.plan.draft import Draft


def say_materialized(draft: Draft) -> None:
    """Set the condition at the end of a pass; `take_progress` has recorded the report."""
    steps = draft.experiment.spec.pipeline if draft.experiment else ()
    if all(step.kind != "materialize" for step in steps):
        return
    kept: Document | None = draft.status.get("materialization")
    is_active = draft.submission is not None
    if kept is None and not is_active and draft.reason(MATERIALIZED) is None:
        return  # no attempt has begun, or it ended under an older operator
    if kept is None or (draft.is_true(COMPLETE) and not _is_complete(kept)):
        message = "no attempt has reported yet which rows are kept"
        draft.condition(MATERIALIZED, None, NOT_REPORTED, message, tells=False)
        return
    done, needed = kept["completePartitions"], kept["partitions"]
    where = f"{kept['catalog']}.{kept['table']}"
    counts = f"{done} of {needed} partitions are in {where}"
    if _is_complete(kept):
        reason = HIT if kept["state"] == "Hit" else COMPUTED
        draft.condition(MATERIALIZED, True, reason, f"{counts} at snapshot {kept['snapshotId']}")
    elif is_active:
        others = f"attempt {draft.attempt} computes the others"
        draft.condition(MATERIALIZED, False, COMPUTING, f"{counts}; {others}")
    else:
        others = "the next attempt computes the others"
        draft.condition(MATERIALIZED, False, INCOMPLETE, f"{counts}; {others}")


def _is_complete(kept: Document) -> bool:
    return "snapshotId" in kept and kept["completePartitions"] >= kept["partitions"]
