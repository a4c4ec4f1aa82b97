"""Verdicts, the results of rules: a verdict says what to change and what to do.

Verdicts are added: `a + b` is what `a` says, then what `b` says. `Situation.after` gives the
situation that the next rule sees, and `composing` makes the decision of the pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dataset_operator.autoscaling.inference import InferenceMemory
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.plan.outcome import Action, Event
from dataset_operator.status import ConditionStatus, fit_message
from pipeline_runtime.config import DatasetExperiment, ExperimentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCondition:
    """A condition to set.

    Attributes:
        warns: whether a user has to act, or something was lost.
        is_recorded: whether a transition or a new reason is recorded as an event too.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str
    warns: bool = False
    is_recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The experiment and the spec that the pass works with, once the spec has been judged.

    Attributes:
        experiment: the experiment that runs; None if no run can go on.
        spec: the spec as it is wanted now; None if it is invalid.
    """

    experiment: DatasetExperiment | None = None
    spec: ExperimentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision of one rule. Conditions are cleared, then fields changed, then conditions set.

    Attributes:
        clears: types of conditions to clear.
        fields: changed fields of the status, by their Python names; None clears a field.
        conditions: conditions to set.
        events: events that do not follow from a condition.
        again_seconds: time until another pass is due without an event; None: no such pass.
        ends: whether the rules after this one have nothing to decide.
        has_finalizer: whether the experiment needs the finaliser; None: unchanged.
        memory: the new memory of the autoscaling policy; None: unchanged.
        inference: new memories of the policy of inference workers, by the name of their group.
        judged: the experiment that runs from here on; None: unchanged.
    """

    clears: frozenset[str] = frozenset()
    fields: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[NewCondition, ...] = ()
    events: tuple[Event, ...] = ()
    actions: tuple[Action, ...] = ()
    again_seconds: float | None = None
    ends: bool = False
    has_finalizer: bool | None = None
    memory: Memory | None = None
    inference: Mapping[str, InferenceMemory] = field(default_factory=dict)
    judged: Judged | None = None

    def __add__(self, later: Verdict) -> Verdict:
        """Return what this verdict says, then what a later one says."""
        soon = [v.again_seconds for v in (self, later) if v.again_seconds is not None]
        kept = tuple(new for new in self.conditions if new.type not in later.clears)
        is_decided = later.has_finalizer is not None
        return Verdict(
            clears=self.clears | later.clears,
            fields={**self.fields, **later.fields},
            conditions=kept + later.conditions,
            events=self.events + later.events,
            actions=self.actions + later.actions,
            again_seconds=min(soon, default=None),
            ends=self.ends or later.ends,
            has_finalizer=later.has_finalizer if is_decided else self.has_finalizer,
            memory=later.memory or self.memory,
            inference={**self.inference, **later.inference},
            judged=later.judged or self.judged,
        )


NOTHING = Verdict()
END = Verdict(ends=True)
# The attempt has ended, so the status has no submission, and no driver needs the finaliser.
ATTEMPT_OVER = Verdict(fields={"submission": None}, has_finalizer=False)
NOT_JUDGED = Judged()


def set_condition(
    kind: str,
    status: bool | None,
    reason: str,
    message: str,
    *,
    warns: bool = False,
    is_recorded: bool = True,
) -> Verdict:
    """Set a condition.

    Args:
        status: None for `Unknown`.
        message: its end is cut off if it is too long.
        warns: whether a user has to act, or something was lost.
        is_recorded: whether a transition or a new reason is recorded as an event too.
    """
    word: ConditionStatus = "Unknown" if status is None else "True" if status else "False"
    new = NewCondition(
        type=kind,
        status=word,
        reason=reason,
        message=fit_message(message, kind),
        warns=warns,
        is_recorded=is_recorded,
    )
    return Verdict(conditions=(new,))


def clear_conditions(*kinds: str) -> Verdict:
    """Remove conditions."""
    return Verdict(clears=frozenset(kinds))


def change(**fields: object) -> Verdict:
    """Change fields of the status, by their Python names; None clears a field."""
    return Verdict(fields=fields)


def clear_fields(*names: str) -> Verdict:
    """Clear fields of the status, by their Python names."""
    return Verdict(fields=dict.fromkeys(names))


def record_event(
    reason: str,
    message: str,
    *,
    warns: bool = False,
    is_logged: bool = False,
    is_outcome: bool = False,
) -> Verdict:
    """Record an event that does not follow from a condition."""
    event = build_event(reason, message, warns=warns)
    return Verdict(events=(replace(event, is_logged=is_logged, is_outcome=is_outcome),))


def build_event(reason: str, message: str, *, warns: bool) -> Event:
    """Build an event."""
    return Event(type="Warning" if warns else "Normal", reason=reason, message=message)


def act(*actions: Action) -> Verdict:
    """Carry out actions."""
    return Verdict(actions=actions)


def look_again(seconds: float) -> Verdict:
    """Request another pass after this many seconds, even without an event."""
    return Verdict(again_seconds=max(0.0, seconds))
