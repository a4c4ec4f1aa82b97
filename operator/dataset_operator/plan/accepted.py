"""The condition `Accepted`: whether the spec is valid, waits or is refused, and its unknown fields.

After a downgrade, a spec may have fields that only the newer version knows. They are ignored and
reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataset_operator.api import ACCEPTED, INVALID_SPEC, UNKNOWN_FIELDS
from dataset_operator.plan.draft import Draft
from dataset_operator.status import find_condition

# Enough to recognize the fields; the rest of the message needs room too.
_MAX_NAMED = 5
_MAX_NAME_CHARS = 80
# `status.fit_message` cuts long messages, but always keeps at least this much.
_SURELY_KEPT_CHARS = 100


def say_accepted(draft: Draft, reason: str, message: str, *, warns: bool = False) -> None:
    """Set the condition `Accepted`, and report ignored fields once per generation.

    The ignored fields are named at the start of its message.
    """
    ignored = _name_ignored(draft.ignored)
    if ignored and not _is_said(draft, ignored):
        draft.tell(UNKNOWN_FIELDS, ignored, warns=True, logs=True)
    message = f"{ignored}; {message}" if ignored else message
    draft.condition(ACCEPTED, reason != INVALID_SPEC, reason, message, warns=warns)


def name_broken_seal(draft: Draft, kind: str) -> str:
    """Return the object of a kind whose seal is broken, as «Kind name»; "" if there is none."""
    found = draft.observed.broken_seals
    return next((name for name in found if name.startswith(f"{kind} ")), "")


def _name_ignored(paths: Sequence[str]) -> str:
    if not paths:
        return ""
    named = ", ".join(path[:_MAX_NAME_CHARS] for path in paths[:_MAX_NAMED])
    more = len(paths) - _MAX_NAMED
    named += f" and {more} more" if more > 0 else ""
    return f"ignored fields, unknown to this operator: {named}; upgrade it, or remove them"


def _is_said(draft: Draft, ignored: str) -> bool:
    before = find_condition(draft.status, ACCEPTED)
    if before is None or before.get("observedGeneration") != draft.observed.generation:
        return False
    said: str = before.get("message", "")
    return said.startswith(ignored[:_SURELY_KEPT_CHARS])
