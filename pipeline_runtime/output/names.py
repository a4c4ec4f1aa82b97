"""Names of the files and folders that an output run stores, each made in one place."""

from __future__ import annotations

import re
import secrets

# Below the run's folder in `_staging/`.
RUN_FILE = "run.json"
CLAIM_FILE = "claim.json"
SPOOL_FOLDER = "spool"
CHUNKS_FOLDER = "pieces"
MERGE_FILE = "merge.json"
MERGED_FOLDER = "merged"
MERGING_FOLDER = "merging"
TABLE_FOLDER = "table"
COMMIT_FILE = "commit.json"
COMMITS_FOLDER = "commits"
REPLACED_FOLDER = "replaced"
STAGING_FOLDER = "_staging"

_BACKFILL = "backfill_"  # no run has such a name

_TOKEN_BYTES = 6
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def make_token() -> str:
    """Return a part of a name that no other attempt has."""
    return secrets.token_hex(_TOKEN_BYTES)


def is_plain(name: str) -> bool:
    """Return whether a name that was read from a store is a file in the folder it is to be in."""
    return _PLAIN.fullmatch(name) is not None


def name_backfill(run: str) -> str:
    """Return the beginning of the names of the folders in which a backfill stages its commits."""
    return f"{_BACKFILL}{run}_"


def split_backfill(folder: str) -> tuple[str, str] | None:
    """Return the run of a folder in which a backfill stages a commit, and the rest of its name."""
    run, _, rest = folder.removeprefix(_BACKFILL).rpartition("_")
    return (run, rest) if folder.startswith(_BACKFILL) else None


def name_chunk(group: int, chunk: int) -> str:
    """Return the name of a chunk's record."""
    return f"{group:06d}-{chunk:04d}.json"


def name_task(index: int) -> str:
    """Return the name of the record of a merge task."""
    return f"{index:06d}.json"


def name_file(number: int, part: int, token: str) -> str:
    """Return the name of one of the table's files; names sort in the order of the rows."""
    return f"part-{number:05d}-{part:02d}-{token}.parquet"
