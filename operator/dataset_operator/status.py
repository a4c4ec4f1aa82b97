"""Builds the status: conditions by the Kubernetes API conventions, and a phase for printing.

`lastTransitionTime` changes only with a condition's status, so a pass that changes nothing produces
the same bytes, and nothing is written.
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
    MATERIALIZED,
    RETRYING,
    SCALING_ACTIVE,
    SCALING_LIMITED,
    STOPPING,
    SUSPENDED,
    TRAINING,
    WRITING,
)
from dataset_operator.documents import format_time
from dataset_operator.groups import WorkerGroup
from pipeline_runtime.config import Condition, ExperimentStatus, WorkerStatus, clean

# Bytes of a message in JSON: the messages of all conditions (`ExperimentStatus.conditions`)
# leave room for the rest of a status, which has at most MAX_STATUS_BYTES.
MAX_MESSAGE_BYTES = 1000
# Bytes of a whole status in JSON.
MAX_STATUS_BYTES = 20 << 10
# Clocks of nodes may differ by this much, and the times of a status are whole seconds.
_SKEW_SECONDS = 5.0
# Parts of a status with times in the future, or that handle clocks that are ahead by themselves.
_AHEAD = frozenset({"scaling", "usage"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
# Of messages that are ours as a whole, and about what the status has more of.
MAX_SHORT_BYTES = 384
_SHORT_KINDS = (MATERIALIZED, SCALING_ACTIVE, SCALING_LIMITED)

ConditionStatus = Literal["True", "False", "Unknown"]

# The first condition that has the given status determines the phase.
_PHASES: tuple[tuple[str, ConditionStatus, str], ...] = (
    (FAILED, "True", "Failed"),
    (COMPLETE, "True", "Complete"),
    (SUSPENDED, "True", "Suspended"),
    (TRAINING, "True", "Training"),
    (WRITING, "True", "Writing"),
    (CLUSTER_READY, "True", "Starting"),
    (CLUSTER_READY, "False", "Pending"),
    (ACCEPTED, "False", "Invalid"),
)
# The phase by the reason of the condition Training or Writing; it precedes those above.
_WORK_PHASES = {STOPPING: "Stopping", RETRYING: "Retrying"}
_ORDER = (
    *(ACCEPTED, CLUSTER_READY, TRAINING, WRITING, MATERIALIZED),
    *(SCALING_ACTIVE, SCALING_LIMITED, SUSPENDED, COMPLETE, FAILED),
)


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of a type in a status that is a mapping; None if there is none."""
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), None)


def find_work(status: ExperimentStatus) -> Condition | None:
    """Return the condition about the driver, Training or Writing; None before the first attempt."""
    return status.find(TRAINING) or status.find(WRITING)


def is_working(status: ExperimentStatus) -> bool:
    """Return whether the driver runs."""
    work = find_work(status)
    return work is not None and work.status == "True"


def count_staying(workers: WorkerStatus | None) -> int | None:
    """Return the desired data workers without those that are draining; None without a cluster."""
    if workers is None:
        return None
    return workers.desired_replicas if workers.draining_to is None else workers.draining_to


def list_workers(status: ExperimentStatus, kind: WorkerGroup) -> tuple[WorkerStatus, ...]:
    """Return the numbers of pods of a kind of group; of several groups if it is a list."""
    found = getattr(status, kind.attribute)
    if kind.is_list:
        return tuple(found)
    return () if found is None else (found,)


def set_condition(
    status: ExperimentStatus, new: Condition, *, generation: int, now: datetime
) -> ExperimentStatus:
    """Return the status with a condition set, in a fixed order.

    Args:
        new: the condition; its generation and the time of its transition are set here.
    """
    before = status.find(new.type)
    is_same = before is not None and before.status == new.status
    since = before.last_transition_time if before and is_same else format_time(now)
    new = new.model_copy(update={"observed_generation": generation, "last_transition_time": since})
    others = [known for known in status.conditions if known.type != new.type]
    conditions = sorted([*others, new], key=lambda condition: place_condition(condition.type))
    return status.model_copy(update={"conditions": tuple(conditions)})


def fit_message(message: str, kind: str = "") -> str:
    """Clean the message of a condition or event, and cut it with an ellipsis if it is too long.

    Args:
        kind: type of the condition; "" for an event.
    """
    most = MAX_SHORT_BYTES if kind in _SHORT_KINDS else MAX_MESSAGE_BYTES
    return _cut(clean(message), most)


def _cut(message: str, most: int) -> str:
    if _num_bytes(message) <= most:
        return message
    ends = accumulate(map(_num_bytes, message[:most]))
    return message[: sum(end <= most - _num_bytes("…") for end in ends)] + "…"


def fit_status(status: ExperimentStatus) -> ExperimentStatus:
    """Return the status with shorter messages if it is too large as a whole.

    That happens only if all conditions have long messages while many workers drain, or many
    tables are read.
    """
    most = MAX_MESSAGE_BYTES
    while most > 1 and _num_bytes(status.to_document()) > MAX_STATUS_BYTES - 2:
        most //= 2
        cut = [c.model_copy(update={"message": _cut(c.message, most)}) for c in status.conditions]
        status = status.model_copy(update={"conditions": tuple(cut)})
    return status


def _num_bytes(value: Any) -> int:
    """Return the size in JSON, without quotes or braces; Ray's text may have lone surrogates."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")) - 2


def place_condition(kind: str) -> int:
    """Return the place of a type of condition in a status."""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def forget_future(status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the status with every future time replaced by `now`.

    A clock that was ahead wrote such a time, here or on another node. A pause, drain or finaliser
    that is measured from it would not end until the clock reaches it.
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
    # Times in UTC and in one format sort like text.
    is_later = isinstance(value, str) and len(value) == len(now) and value > latest
    return now if is_later and _TIME.fullmatch(value) else value


def derive_phase(status: ExperimentStatus) -> str:
    """Derive the phase, one word for printing; nothing reads it back."""
    work = find_work(status)
    word = _WORK_PHASES.get(work.reason) if work is not None else None
    if word and not any(map(status.is_true, (FAILED, COMPLETE, SUSPENDED))):
        return word
    for kind, wanted, phase in _PHASES:
        condition = status.find(kind)
        if condition is not None and condition.status == wanted:
            return phase
    return "Pending"
