"""The status that a pass leaves: conditions by the Kubernetes API conventions, phase for printing.

`lastTransitionTime` moves only with a condition's status, so a pass that changes nothing gives the
same bytes and is not written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Literal

from dataset_operator.api import (
    ACCEPTED,
    CLUSTER_READY,
    COMPLETE,
    FAILED,
    RETRYING,
    SCALING_ACTIVE,
    SCALING_LIMITED,
    STOPPING,
    SUSPENDED,
    TRAINING,
)
from dataset_operator.observed import format_time
from pipeline_runtime.config import clean

# Of a message in JSON: eight conditions (`ExperimentStatus.conditions`) of so much leave room for
# the rest of a status in 16 KiB (architecture, «Status writes»).
MAX_MESSAGE_BYTES = 1024
# Of a whole status as JSON (ibid.).
MAX_STATUS_BYTES = 16 << 10
# Clocks of nodes agree within this, and the times of a status are of whole seconds.
_SKEW_SECONDS = 5.0
# Parts of a status that hold times to come, or see themselves to clocks that are ahead.
_AHEAD = frozenset({"scaling", "usage"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
# Those of scaling are words of ours, never others': shorter, for what else there is of scaling.
MAX_SCALING_BYTES = 400

ConditionStatus = Literal["True", "False", "Unknown"]
Condition = dict[str, Any]

# The first condition that is as it says gives the phase.
_PHASES: tuple[tuple[str, ConditionStatus, str], ...] = (
    (FAILED, "True", "Failed"),
    (COMPLETE, "True", "Complete"),
    (SUSPENDED, "True", "Suspended"),
    (TRAINING, "True", "Training"),
    (CLUSTER_READY, "True", "Starting"),
    (CLUSTER_READY, "False", "Pending"),
    (ACCEPTED, "False", "Invalid"),
)
# What training waits for, by the reason of its condition.
_TRAINING_PHASES = {STOPPING: "Stopping", RETRYING: "Retrying"}
_ORDER = (
    *(ACCEPTED, CLUSTER_READY, TRAINING, SCALING_ACTIVE, SCALING_LIMITED),
    *(SUSPENDED, COMPLETE, FAILED),
)


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition of that type, if there is one."""
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), None)


def is_true(status: Mapping[str, Any], kind: str) -> bool:
    """Whether a condition is there and true."""
    condition = find_condition(status, kind)
    return condition is not None and condition["status"] == "True"


def set_condition(
    status: Mapping[str, Any], condition: Condition, *, generation: int, now: datetime
) -> dict[str, Any]:
    """The status with a condition of {type, status, reason, message} set, in a fixed order."""
    before = find_condition(status, condition["type"])
    same = before is not None and before["status"] == condition["status"]
    since = before["lastTransitionTime"] if same and before else format_time(now)
    new = {**condition, "observedGeneration": generation, "lastTransitionTime": since}
    others = [c for c in status.get("conditions") or () if c["type"] != condition["type"]]
    return {**status, "conditions": sorted([*others, new], key=_place)}


def fit_message(message: str, kind: str = "") -> str:
    """The message of a condition or an event, with an ellipsis where it would be too long.

    Args:
        kind: type of the condition.
    """
    most = MAX_SCALING_BYTES if kind in (SCALING_ACTIVE, SCALING_LIMITED) else MAX_MESSAGE_BYTES
    return _cut(clean(message), most)


def _cut(message: str, most: int) -> str:
    if _num_bytes(message) <= most:
        return message
    ends = accumulate(map(_num_bytes, message[:most]))
    return message[: sum(end <= most - _num_bytes("…") for end in ends)] + "…"


def fit_status(status: dict[str, Any]) -> dict[str, Any]:
    """The status, its messages cut once more where all of it together would be too large.

    That takes eight conditions that all have a long story to tell, while many workers drain.
    """
    most = MAX_MESSAGE_BYTES
    while most > 1 and _num_bytes(status) > MAX_STATUS_BYTES - 2:
        most //= 2
        conditions = [{**c, "message": _cut(c["message"], most)} for c in status["conditions"]]
        status = {**status, "conditions": conditions}
    return status


def _num_bytes(value: Any) -> int:
    """What it takes in JSON, without quotes or braces; Ray's words may hold half a character."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")) - 2


def _place(condition: Mapping[str, Any]) -> int:
    kind = condition["type"]
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def forget_future(status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status with every time that lies ahead of `now` as now.

    A clock that was ahead wrote it, here or on another node. What is counted from such a time would
    not end before the clock has come there: a pause of ten seconds, a drain, a finaliser.
    """
    latest = format_time(now + timedelta(seconds=_SKEW_SECONDS))
    return {
        name: value if name in _AHEAD else _replace_later(value, latest, format_time(now))
        for name, value in status.items()
    }


def _replace_later(value: Any, latest: str, now: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _replace_later(item, latest, now) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_later(item, latest, now) for item in value]
    # Times of one form and in UTC are in the order of their letters.
    is_later = isinstance(value, str) and len(value) == len(now) and value > latest
    return now if is_later and _TIME.fullmatch(value) else value


def derive_phase(status: Mapping[str, Any]) -> str:
    """One word for printing; nothing reads it back."""
    training = find_condition(status, TRAINING)
    word = _TRAINING_PHASES.get(training["reason"]) if training is not None else None
    if word and not any(is_true(status, kind) for kind in (FAILED, COMPLETE, SUSPENDED)):
        return word
    for kind, wanted, phase in _PHASES:
        condition = find_condition(status, kind)
        if condition is not None and condition["status"] == wanted:
            return phase
    return "Pending"
