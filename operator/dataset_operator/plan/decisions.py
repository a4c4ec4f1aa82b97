"""The log of the autoscaler's decisions: in the status the latest, in the artifacts all of them.

    note      a decision that changed the number is written into `status.scaling.decisions`
    keep_log  a job on the head writes what is not kept yet into the run's folder
    settle    once Ray says that the job has ended, what it wrote counts as kept

The operator has no credentials of the store; the head's pod has, so a job there writes. What it
writes has names of its own, and its id is that of its latest decision: it may be submitted again,
and two that write the same do no harm. What a job failed to write goes with the next decision, so
a store that refuses costs no job a pass, and a run whose number does not change costs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dataset_operator.autoscaling.decision import Decision as Answer
from dataset_operator.names import Owner
from dataset_operator.observed import Document, parse_time
from dataset_operator.plan.decision import KeepLog
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.progress import format_decimal

# `status.scaling.decisions` in the CRD; older ones are in the artifacts.
MAX_DECISIONS = 10
# So that the rest of a status has room in 16 KiB: older ones that are kept are numbers and a word.
MAX_MESSAGES = 3
MAX_MESSAGE_CHARS = 200
# Of the inputs, those that are shown; the others stand in the artifacts alone.
_SHOWN_INPUTS = ("gpuUtilization", "productionShare")
_DIGITS = 4
_PENDING: Literal["Pending"] = "Pending"
_FAILED: Literal["Failed"] = "Failed"


def note_decision(draft: Draft, answer: Answer, before: int) -> None:
    """Write down a decision that changes the number from `before`."""
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
        "log": _PENDING,
    }
    known = list_decisions(draft.status)
    if (
        known
        and "log" in known[-1]
        and (known[-1]["before"], known[-1]["after"])
        == (
            before,
            answer.desired,
        )
    ):
        known = known[:-1]  # decided again, since it was not carried out
    _set(draft, [*known, noted])


def _list_inputs(draft: Draft, answer: Answer) -> dict[str, str]:
    """What the law listed; how busy the GPUs were whatever law it is, if it is known."""
    progress = draft.observed.progress
    known = None if progress is None else progress.utilization
    busy = {} if known is None else {"gpuUtilization": known}
    inputs = {**busy, **answer.inputs}
    return {name: format_decimal(value, _DIGITS) for name, value in sorted(inputs.items())}


def carry_decisions(draft: Draft) -> Document:
    """The part of `status.scaling` that is not the law's memory."""
    decisions = list_decisions(draft.status)
    return {"decisions": list(decisions)} if decisions else {}


def list_decisions(status: Mapping[str, Any]) -> Sequence[Document]:
    """What was decided lately, the oldest first."""
    decisions: Sequence[Document] = (status.get("scaling") or {}).get("decisions") or ()
    return decisions


def keep_log(draft: Draft) -> bool:
    """Have what is not in the artifacts yet written there; it never ends the pass."""
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
        decisions=tuple(build_entry(d) for d in list_decisions(draft.status) if "log" in d),
    )
    return False


def find_log_job(owner: Owner, status: Mapping[str, Any]) -> str | None:
    """Ray's id of the job that is to write decisions; None if none is."""
    pending = [d for d in list_decisions(status) if d.get("log") == _PENDING]
    if not pending:
        return None
    return f"decisions-{owner.uid[:8]}-{parse_time(pending[-1]['time']).timestamp():.0f}"


def _settle(draft: Draft) -> None:
    """Take what became of the job that was under way as the pass began."""
    job = draft.observed.scaling.log_job
    if job is None or job.is_active:
        return
    written = {d["time"] for d in list_decisions(draft.observed.status) if "log" in d}
    is_kept = job.status == "SUCCEEDED"
    settled = [
        _mark(decision, is_kept=is_kept) if decision["time"] in written else decision
        for decision in list_decisions(draft.status)
    ]
    _set(draft, settled)


def _mark(decision: Document, *, is_kept: bool) -> Document:
    if not is_kept:
        return {**decision, "log": _FAILED}
    shown = {n: value for n, value in decision["inputs"].items() if n in _SHOWN_INPUTS}
    return {**_without(decision, "log"), "inputs": shown}


def _set(draft: Draft, decisions: Sequence[Document]) -> None:
    """The latest, as far as there is room for them."""
    latest = decisions[-MAX_DECISIONS:]
    old = len(latest) - MAX_MESSAGES
    fitted = [
        _without(decision, "message", "inputs") if i < old and "log" not in decision else decision
        for i, decision in enumerate(latest)
    ]
    draft.status["scaling"] = {**draft.status.get("scaling", {}), "decisions": fitted}


def _without(decision: Document, *names: str) -> Document:
    return {name: value for name, value in decision.items() if name not in names}


def build_entry(decision: Document) -> Document:
    """As the artifacts have it: `pipeline_runtime.report.decisions` reads it."""
    inputs = {name: float(value) for name, value in decision.get("inputs", {}).items()}
    return {"version": 1, **_without(decision, "log"), "inputs": inputs}


def _shorten(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    return message[: MAX_MESSAGE_CHARS - 1] + "…"
