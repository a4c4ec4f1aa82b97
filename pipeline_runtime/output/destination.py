"""The interface between an output job and its table: staged runs, and the commit.

`folder` is a folder of Parquet files, `iceberg` a table of a catalog. `job` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline_runtime.output.records import RunRecord, StagedFile
from pipeline_runtime.output.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A run's table that is in place.

    Attributes:
        id: tells this table from all others, even from those of the same run.
        snapshot_id: the snapshot of an Iceberg table that the run committed; "" for a folder.
        replaced: the rows that it took the place of, for people; "" if there were none.
    """

    run: str
    id: str
    rows: int
    files: int
    num_bytes: int
    snapshot_id: str = ""
    replaced: str = ""


class Destination(Protocol):
    """A table to write, with the staged files of its runs."""

    def list_runs(self) -> list[str]:
        """Return the names of the runs that may have staged files, newest first."""
        ...

    def stage(self, run: str) -> Storage:
        """Return the folder of a run's staged files."""
        ...

    def check(self, staged: tuple[str, str] | None = None) -> None:
        """Raise OutputRefused if a run may not write the table.

        Args:
            staged: name and id of the run that continues; None for a new one.
        """
        ...

    def find(self, is_mine: Callable[[str], bool]) -> Committed | None:
        """Return the newest table in place of a run with such a name."""
        ...

    def read(self, own_id: str) -> Committed | None:
        """Return the run's table, if it is in place."""
        ...

    def describe_other(self) -> str:
        """Return what is in place instead of a run's own table: a predicate for a message."""
        ...

    def commit(
        self,
        run: str,
        record: RunRecord,
        files: Sequence[StagedFile],
        check_claim: Callable[[], None],
    ) -> int:
        """Put a finished table in place, and return how often that was tried again.

        It may be repeated by another attempt at the run.

        Args:
            check_claim: called before each attempt at the commit of a catalog; raises if another
                attempt has taken the run over.

        Raises OutputRefused if another table has appeared there since the run began, OutputError
        if a staged file is not what was recorded or the table cannot be committed now.
        """
        ...

    def clean_up(self, run: str) -> None:
        """Remove what a committed run replaced and staged."""
        ...

    def abandon(self, run: str) -> bool:
        """Remove all files of a run that is not continued; a table that it committed stays.

        Returns False, and removes nothing, while its commit may yet be carried out.
        """
        ...
