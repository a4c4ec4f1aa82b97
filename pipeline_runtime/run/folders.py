"""Names of runs' folders: when a run began, what it trains, and the id of its attempts.

    20260101T000000Z-0123456789abcdef               the time and the run's hash
    20260101T000000Z-0123456789abcdef-0f3c6c1e-2    and the id that its attempts share (`--run-id`)
    20260101T000000Z-0123456789abcdef-9d2a01c7      or a random id, if no lock guards the store

A run has a folder of this name on the artifacts store, and one on the machine that it runs on
(`claims`). A time and a hash hold no dash, so what follows the second one is the id.
"""

from __future__ import annotations

import re
from datetime import datetime

# Sorts by time. Two runs that begin in the same second get different names (`session`).
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
# With time and hash well below the 255 bytes of a file's name; as long as a label's value.
MAX_RUN_ID_CHARS = 63
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


def build_folder_name(now: datetime, run_hash: str, run_id: str | None = None) -> str:
    """Build the name of a new run's folder.

    Args:
        now: UTC.
        run_id: id that its attempts share; None: it needs none.
    """
    stem = f"{now.strftime(_TIME_FORMAT)}-{run_hash}"
    return stem if run_id is None else f"{stem}-{run_id}"


def parse_run_id(folder: str) -> str | None:
    """Return the id in a folder's name; None if it has none."""
    parts = folder.split("-", maxsplit=2)
    return parts[2] if len(parts) == 3 else None


def parse_run_hash(folder: str) -> str | None:
    """Return the hash in a folder's name; None if it has none."""
    parts = folder.split("-", maxsplit=2)
    return parts[1] if len(parts) > 1 else None


def is_run_id(text: str) -> bool:
    """Return whether a text is a valid run id: letters, digits and dashes, no dash first."""
    return len(text) <= MAX_RUN_ID_CHARS and _RUN_ID.fullmatch(text) is not None
