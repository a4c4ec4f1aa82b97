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
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import Verdict, set_condition
from pipeline_runtime.config import MaterializationStatus


def report_materialized(situation: Situation) -> Verdict | None:
    """Set the condition at the end of a pass; `record_progress` has recorded the report."""
    experiment, kept = situation.judged.experiment, situation.status.materialization
    steps = experiment.spec.pipeline if experiment else ()
    if all(step.kind != "materialize" for step in steps):
        return None
    is_active = situation.submission is not None
    if kept is None and not is_active and situation.reason(MATERIALIZED) is None:
        return None  # no attempt has begun, or it ended under an older operator
    if kept is None or (situation.status.is_true(COMPLETE) and not _is_complete(kept)):
        message = "no attempt has reported yet which rows are kept"
        return set_condition(MATERIALIZED, None, NOT_REPORTED, message, is_recorded=False)
    done, needed = kept.complete_partitions, kept.partitions
    counts = f"{done} of {needed} partitions are in {kept.catalog}.{kept.table}"
    if _is_complete(kept):
        reason = HIT if kept.state == "Hit" else COMPUTED
        message = f"{counts} at snapshot {kept.snapshot_id}"
        return set_condition(MATERIALIZED, True, reason, message)
    if is_active:
        message = f"{counts}; attempt {situation.attempt} computes the others"
        return set_condition(MATERIALIZED, False, COMPUTING, message)
    message = f"{counts}; the next attempt computes the others"
    return set_condition(MATERIALIZED, False, INCOMPLETE, message)


def _is_complete(kept: MaterializationStatus) -> bool:
    return kept.snapshot_id is not None and kept.complete_partitions >= kept.partitions
