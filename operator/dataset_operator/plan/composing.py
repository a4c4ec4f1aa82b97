"""Makes the decision of a pass from what its rules have decided."""

from __future__ import annotations

from typing import Any, TypeVar

from dataset_operator.plan.outcome import (
    Action,
    Apply,
    Create,
    Decision,
    Delete,
    DeleteSelf,
    Drain,
    KeepLog,
    Patch,
    Stop,
    Submit,
    Trial,
)
from dataset_operator.plan.situation import Situation
from dataset_operator.status import derive_phase, fit_status
from pipeline_runtime.config import ExperimentStatus

A = TypeVar("A", bound=Action)


def compose_decision(situation: Situation) -> Decision:
    """Return the decision of a pass from the situation after its last rule."""

    def find(kind: type[A]) -> list[A]:
        return [action for action in situation.actions if isinstance(action, kind)]

    def last(*kinds: type[Any]) -> Any:
        found = [action for action in situation.actions if isinstance(action, kinds)]
        return found[-1] if found else None

    trial = last(Trial)
    return Decision(
        status=complete_status(situation),
        has_finalizer=situation.has_finalizer,
        create=tuple(action.document for action in find(Create)),
        apply=tuple(action.document for action in find(Apply)),
        patches=tuple((a.kind, a.name, a.patch) for a in find(Patch)),
        trial=trial and trial.document,
        job=last(Submit, Stop),
        drains=tuple(find(Drain)),
        log=last(KeepLog),
        memory=situation.memory,
        inference=situation.inference,
        delete=tuple((action.kind, action.name) for action in find(Delete)),
        delete_self=bool(find(DeleteSelf)),
        events=situation.events,
        again_seconds=situation.again_seconds,
    )


def complete_status(situation: Situation) -> ExperimentStatus:
    """Return the status as it is written: with its phase and generation, and within its bound."""
    status = situation.status
    about = {"observed_generation": situation.observed.generation, "phase": derive_phase(status)}
    return fit_status(status.model_copy(update=about))


def is_status_new(situation: Situation) -> bool:
    """Return whether the status, as decided so far, differs from the observed one."""
    return complete_status(situation) != situation.observed.status
