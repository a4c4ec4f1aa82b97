"""The condition `Accepted`: whether the spec is valid, waits or is refused, and its unknown fields.

After a downgrade, a spec may have fields that only the newer version knows. They are ignored and
reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataset_operator.api import ACCEPTED, INVALID_SPEC, UNKNOWN_FIELDS
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import NOTHING, Verdict, record_event, set_condition

# Enough to recognize the fields; the rest of the message needs room too.
_MAX_NAMED = 5
_MAX_NAME_CHARS = 80
# `status.fit_message` cuts long messages, but always keeps at least this much.
_SURELY_KEPT_CHARS = 100


def report_accepted(
    situation: Situation, reason: str, message: str, *, warns: bool = False
) -> Verdict:
    """Set the condition `Accepted`, and report ignored fields once per generation.

    The ignored fields are named at the start of its message.
    """
    ignored, event = _name_ignored(situation.specs.current.unknown), NOTHING
    if ignored and not _is_reported(situation, ignored):
        event = record_event(UNKNOWN_FIELDS, ignored, warns=True, is_logged=True)
    message = f"{ignored}; {message}" if ignored else message
    is_valid = reason != INVALID_SPEC
    return event + set_condition(ACCEPTED, is_valid, reason, message, warns=warns)


def name_broken_seal(situation: Situation, kind: str) -> str:
    """Return the object of a kind whose seal is broken, as «Kind name»; "" if there is none."""
    found = situation.observed.broken_seals
    return next((name for name in found if name.startswith(f"{kind} ")), "")


def _name_ignored(paths: Sequence[str]) -> str:
    if not paths:
        return ""
    named = ", ".join(path[:_MAX_NAME_CHARS] for path in paths[:_MAX_NAMED])
    more = len(paths) - _MAX_NAMED
    named += f" and {more} more" if more > 0 else ""
    return f"ignored fields, unknown to this operator: {named}; upgrade it, or remove them"


def _is_reported(situation: Situation, ignored: str) -> bool:
    before = situation.status.find(ACCEPTED)
    if before is None or before.observed_generation != situation.observed.generation:
        return False
    return before.message.startswith(ignored[:_SURELY_KEPT_CHARS])
