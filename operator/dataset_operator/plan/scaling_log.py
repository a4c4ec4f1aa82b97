"""The log of the autoscaler's decisions: the latest in the status, all of them in the artifacts.

    note_decision  writes a decision that changed the number to `status.scaling.decisions`
    keep_log       has a job on the head write the decisions that are not stored yet
    _settle        marks them as stored once Ray reports that the job has succeeded

The operator has no credentials of the store, but the head's pod has; therefore a job there writes.
Each decision gets its own file, and the job's id is derived from its latest decision, so a job may
be submitted twice, and two jobs may write the same. Decisions that a job failed to write go with
the next decision, so a broken store does not cost one job per pass. A run whose number of data
workers does not change costs no job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dataset_operator.autoscaling.interface import Decision as Answer
from dataset_operator.documents import Document, parse_time
from dataset_operator.names import Owner
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.outcome import KeepLog
from dataset_operator.plan.progress import format_decimal

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


def note_decision(draft: Draft, answer: Answer, before: int) -> None:
    """Add a decision that changes the number of data workers from `before` to the status."""
    verdict = answer.limited or answer.recommended
    message = answer.recommended.message
    if answer.limited is not None:
        message = f"{answer.limited.message}; {message}"
    noted: Document = {
        "time": draft.stamp(),
        "before": before,
        "after": answer.desired,
        "reason": verdict.reason,
        "message": _shorten(message),
        "attempt": draft.attempt,
        "inputs": _list_inputs(draft, answer),
        "logState": _PENDING,
    }
    known = list_decisions(draft.status)
    last = known[-1] if known else {}
    if "logState" in last and (last["before"], last["after"]) == (before, answer.desired):
        known = known[:-1]  # the same decision again, since it was not carried out
    _set(draft, [*known, noted])


def _list_inputs(draft: Draft, answer: Answer) -> list[Document]:
    """Format the inputs of the decision; the GPU utilization is added if it is known."""
    progress = draft.observed.progress
    known = None if progress is None else progress.utilization
    busy = {} if known is None else {"gpuUtilization": known}
    inputs = {**busy, **answer.inputs}
    return [
        {"name": name, "value": format_decimal(value, _DIGITS)}
        for name, value in sorted(inputs.items())
    ]


def carry_decisions(draft: Draft) -> Document:
    """Return the part of `status.scaling` that is not the memory of the autoscaling policy."""
    decisions = list_decisions(draft.status)
    return {"decisions": list(decisions)} if decisions else {}


def list_decisions(status: Mapping[str, Any]) -> Sequence[Document]:
    """Return the latest decisions, oldest first."""
    decisions: Sequence[Document] = (status.get("scaling") or {}).get("decisions") or ()
    return decisions


def keep_log(draft: Draft) -> bool:
    """Have a job write the decisions that the artifacts lack; never end the pass."""
    job = draft.observed.job
    if job is None or job.status != "RUNNING":
        return False
    _settle(draft)
    name = find_log_job(draft.owner, draft.status)
    uri = draft.status.get("artifactsUri")
    if name is None or uri is None:
        return False
    draft.log = KeepLog(
        submission_id=name,
        artifacts_uri=uri,
        run_id=draft.owner.run_id(draft.status["run"]),
        decisions=tuple(build_entry(d) for d in list_decisions(draft.status) if "logState" in d),
    )
    return False


def find_log_job(owner: Owner, status: Mapping[str, Any]) -> str | None:
    """Return the Ray job id for writing the pending decisions; None if none is pending."""
    pending = [d for d in list_decisions(status) if d.get("logState") == _PENDING]
    if not pending:
        return None
    return f"decisions-{owner.uid[:8]}-{parse_time(pending[-1]['time']).timestamp():.0f}"


def _settle(draft: Draft) -> None:
    """Mark the decisions of the observed log job as stored or failed, once it has ended."""
    job = draft.observed.scaling.log_job
    if job is None or job.is_active:
        return
    written = {
        d["time"] for d in list_decisions(draft.observed.status.to_document()) if "logState" in d
    }
    is_kept = job.status == "SUCCEEDED"
    settled = [
        _mark(decision, is_kept=is_kept) if decision["time"] in written else decision
        for decision in list_decisions(draft.status)
    ]
    _set(draft, settled)


def _mark(decision: Document, *, is_kept: bool) -> Document:
    if not is_kept:
        return {**decision, "logState": _FAILED}
    shown = [item for item in decision["inputs"] if item["name"] in _SHOWN_INPUTS]
    return {**_without(decision, "logState"), "inputs": shown}


def _set(draft: Draft, decisions: Sequence[Document]) -> None:
    """Set the decisions: at most the latest ten, the older of them shortened."""
    latest = decisions[-MAX_DECISIONS:]
    old = len(latest) - MAX_MESSAGES
    fitted = [
        _without(decision, "message", "inputs")
        if i < old and "logState" not in decision
        else decision
        for i, decision in enumerate(latest)
    ]
    draft.status["scaling"] = {**draft.status.get("scaling", {}), "decisions": fitted}


def _without(decision: Document, *names: str) -> Document:
    return {name: value for name, value in decision.items() if name not in names}


def build_entry(decision: Document) -> Document:
    """Build a decision's entry for the artifacts, as the runtime's report reads it."""
    inputs = {item["name"]: float(item["value"]) for item in decision.get("inputs", ())}
    return {"version": 1, **_without(decision, "logState"), "inputs": inputs}


def _shorten(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    return message[: MAX_MESSAGE_CHARS - 1] + "…"
