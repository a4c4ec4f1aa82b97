"""A ResourceQuota's refusal in words with its numbers, and what can be done about it."""

from __future__ import annotations

import re

# As the API server's quota admission writes it (apiserver, plugin/pkg/admission/resourcequota).
_REFUSAL = re.compile(
    r"exceeded quota: (?P<name>[^,\s]+), requested: (?P<requested>\S+), used: (?P<used>\S+), "
    r"limited: (?P<limited>[^\s:]+)"
)
_ADVICE = "ask for less, wait until others end, or have it raised"


def explain_quota(message: str) -> str:
    """The message of a refusal, with the quota's numbers side by side; another as it is."""
    return _REFUSAL.sub(_explain, message)


def _explain(found: re.Match[str]) -> str:
    requested, used, limited = (
        dict(part.partition("=")[::2] for part in found[name].split(","))
        for name in ("requested", "used", "limited")
    )
    parts = [
        f"{resource}: {number} more asked for, {used.get(resource, '?')} of "
        f"{limited.get(resource, '?')} in use"
        for resource, number in requested.items()
    ]
    return f"exceeded quota: {found['name']} ({'; '.join(parts)}); {_ADVICE}"
