"""The log of the autoscaler's decisions: the latest in the status, all of them in the artifacts.

    record_decision  writes a decision that changed the number to `status.scaling.decisions`
    keep_log         has a job on the head write the decisions that are not stored yet
    _settle          marks them as stored once Ray reports that the job has succeeded

The operator has no credentials of the store, but the head's pod has; therefore a job there writes.
Each decision gets its own file, and the job's id is derived from its latest decision, so a job may
be submitted twice, and two jobs may write the same. Decisions that a job failed to write go with
the next decision, so a broken store does not cost one job per pass. A run whose number of data
workers does not change costs no job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dataset_operator.autoscaling.interface import Decision as Answer
from dataset_operator.documents import parse_time
from dataset_operator.names import Owner
from dataset_operator.plan.outcome import KeepLog
from dataset_operator.plan.progress import format_decimal
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import NOTHING, Verdict, act, change
from pipeline_runtime.config import (
    DecisionInputStatus,
    DecisionStatus,
    ExperimentStatus,
    ScalingStatus,
)

# The bound of `status.scaling.decisions` in the CRD; older decisions are in the artifacts only.
MAX_DECISIONS = 10
# Older stored decisions lose their message and inputs, since a status has only 20 KiB.
MAX_MESSAGES = 3
MAX_MESSAGE_CHARS = 200
# The inputs that stay in the status once a decision is stored; the artifacts have all of them.
_SHOWN_INPUTS = ("gpuUtilization", "productionShare")
_DIGITS = 4
_PENDING: Literal["Pending"] = "Pending"
_FAILED: Literal["Failed"] = "Failed"


def record_decision(
    situation: Situation, scaling: ScalingStatus, answer: Answer, before: int
) -> ScalingStatus:
    """Add a decision that changes the number of data workers from `before`."""
    verdict = answer.limited or answer.recommended
    message = answer.recommended.message
    if answer.limited is not None:
        message = f"{answer.limited.message}; {message}"
    new = DecisionStatus(
        time=situation.stamp,
        before=before,
        after=answer.desired,
        reason=verdict.reason,
        message=_shorten(message),
        attempt=situation.attempt,
        inputs=_list_inputs(situation, answer),
        log_state=_PENDING,
    )
    known = scaling.decisions
    if known and known[-1].log_state and (known[-1].before, known[-1].after) == (before, new.after):
        known = known[:-1]  # the same decision again, since it was not carried out
    return _fit(scaling, (*known, new))


def _list_inputs(situation: Situation, answer: Answer) -> tuple[DecisionInputStatus, ...]:
    """Format the inputs of the decision; the GPU utilization is added if it is known."""
    progress = situation.observed.progress
    known = None if progress is None else progress.utilization
    busy = {} if known is None else {"gpuUtilization": known}
    inputs = {**busy, **answer.inputs}
    return tuple(
        DecisionInputStatus(name=name, value=format_decimal(value, _DIGITS))
        for name, value in sorted(inputs.items())
    )


def list_decisions(status: ExperimentStatus) -> tuple[DecisionStatus, ...]:
    """Return the latest decisions, oldest first."""
    return status.scaling.decisions if status.scaling else ()


def keep_log(situation: Situation) -> Verdict | None:
    """Have a job write the decisions that the artifacts lack; never end the pass."""
    job = situation.observed.job
    if job is None or job.status != "RUNNING":
        return None
    settled = _settle(situation)
    status = situation.after(settled).status
    name = find_log_job(situation.owner, status)
    if name is None or status.artifacts_uri is None:
        return settled
    pending = (decision for decision in list_decisions(status) if decision.log_state)
    log = KeepLog(
        submission_id=name,
        artifacts_uri=status.artifacts_uri,
        run_id=situation.owner.run_id(situation.run),
        decisions=tuple(map(build_entry, pending)),
    )
    return settled + act(log)


def find_log_job(owner: Owner, status: ExperimentStatus) -> str | None:
    """Return the Ray job id for writing the pending decisions; None if none is pending."""
    pending = [d for d in list_decisions(status) if d.log_state == _PENDING]
    if not pending:
        return None
    return f"decisions-{owner.uid[:8]}-{parse_time(pending[-1].time).timestamp():.0f}"


def _settle(situation: Situation) -> Verdict:
    """Mark the decisions of the observed log job as stored or failed, once it has ended."""
    job, scaling = situation.observed.scaling.log_job, situation.status.scaling
    if job is None or job.is_active or scaling is None:
        return NOTHING
    written = {d.time for d in list_decisions(situation.observed.status) if d.log_state}
    is_kept = job.status == "SUCCEEDED"
    settled = [
        _mark(decision, is_kept=is_kept) if decision.time in written else decision
        for decision in scaling.decisions
    ]
    return change(scaling=_fit(scaling, settled))


def _mark(decision: DecisionStatus, *, is_kept: bool) -> DecisionStatus:
    if not is_kept:
        return decision.change(log_state=_FAILED)
    shown = tuple(item for item in decision.inputs if item.name in _SHOWN_INPUTS)
    return decision.change(log_state=None, inputs=shown)


def _fit(scaling: ScalingStatus, decisions: Sequence[DecisionStatus]) -> ScalingStatus:
    """Set the decisions: at most the latest ten, the older of them shortened."""
    latest = decisions[-MAX_DECISIONS:]
    old = len(latest) - MAX_MESSAGES
    fitted = tuple(
        decision.change(message=None, inputs=None)
        if i < old and not decision.log_state
        else decision
        for i, decision in enumerate(latest)
    )
    return scaling.change(decisions=fitted)


def build_entry(decision: DecisionStatus) -> dict[str, Any]:
    """Build a decision's entry for the artifacts, as the runtime's report reads it."""
    inputs = {item.name: float(item.value) for item in decision.inputs}
    return {"version": 1, **decision.change(log_state=None).to_document(), "inputs": inputs}


def _shorten(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    return message[: MAX_MESSAGE_CHARS - 1] + "…"
