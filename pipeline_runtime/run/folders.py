"""The names of runs' folders on the artifacts store: when a run began, what it trains, whose it is.

    20260101T000000Z-0123456789abcdef               the time and the run's hash
    20260101T000000Z-0123456789abcdef-0f3c6c1e-2    and the id that its attempts share (`--run-id`)

`prepare` makes them and looks for checkpoints in them, `lastmile artifacts` for a report. A time
and a hash hold no dash, so what follows the second one is the id.
"""

from __future__ import annotations

import re
from datetime import datetime

# Sorts by time, and a second is fine enough: a run takes longer to start.
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
# With time and hash well below the 255 bytes of a file's name; as long as a label's value.
MAX_RUN_ID_CHARS = 63
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


def build_folder_name(now: datetime, run_hash: str, run_id: str | None = None) -> str:
    """The name of a new run's folder.

    Args:
        now: UTC.
        run_id: what its attempts share; None: no other run is to be told from it.
    """
    stem = f"{now.strftime(_TIME_FORMAT)}-{run_hash}"
    return stem if run_id is None else f"{stem}-{run_id}"


def parse_run_id(folder: str) -> str | None:
    """The id in a folder's name, if it has one."""
    parts = folder.split("-", maxsplit=2)
    return parts[2] if len(parts) == 3 else None


def parse_run_hash(folder: str) -> str | None:
    """The hash in a folder's name, if it has one."""
    parts = folder.split("-", maxsplit=2)
    return parts[1] if len(parts) > 1 else None


def is_run_id(text: str) -> bool:
    """Return whether a text is a valid run id: letters, digits and dashes, no dash first."""
    return len(text) <= MAX_RUN_ID_CHARS and _RUN_ID.fullmatch(text) is not None
