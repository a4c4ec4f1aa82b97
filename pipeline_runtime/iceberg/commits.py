"""Commit a change of an Iceberg table once, whatever the catalog answers.

`commit_change` has a retry loop of its own, since PyIceberg's deletes the files of an attempt that
the catalog refused, although a refusal may answer a request that was sent twice and landed. Before
each attempt it looks for the commit in the table: its run and token are in the snapshot's summary.
Every attempt asserts the snapshot that it replaces, so at most one attempt of a change lands.

    landed     the snapshot is in the table
    lost       the table's state forbids the change: `stage` raised; the caller may delete its files
    unknown    no answer, and no snapshot yet: nothing is deleted; another attempt reads the table
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline_runtime.deadline import call_in_time
from pipeline_runtime.errors import OutputError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

RUN_PROPERTY = "lastmile.run"
TOKEN_PROPERTY = "lastmile.commit"
# Answers that mean nothing by themselves: the catalog was away, or the connection was.
_MAX_UNKNOWN = 5
# A catalog in the cloud may have to start; a commit writes metadata, and locks the table.
_LOAD_SECONDS, _COMMIT_SECONDS = 30.0, 120.0
# Requests to a store at a time.
_REQUESTS = 16


class CommitUnknown(OutputError):
    """The catalog did not say whether it carried out a commit. Delete no file of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitKey:
    """Identifies a commit among all commits of a table.

    Attributes:
        run: name of the run.
        token: unique, and the same for every attempt at this commit.
        properties: more properties of the snapshot.
    """

    run: str
    token: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def to_properties(self) -> dict[str, str]:
        """Return the properties for the snapshot's summary."""
        return {**self.properties, RUN_PROPERTY: self.run, TOKEN_PROPERTY: self.token}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Waiting times between attempts at a commit that another writer was faster with."""

    min_wait_seconds: float = 0.1
    max_wait_seconds: float = 5.0
    max_seconds: float = 600.0
    sleep: Callable[[float], None] = time.sleep

    def wait(self, attempt: int) -> None:
        """Wait longer with each attempt, by a random part, so that writers do not march in step."""
        longest = min(self.max_wait_seconds, self.min_wait_seconds * 2.0 ** min(attempt, 16))
        self.sleep(random.uniform(0.0, longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit that is in the table.

    Attributes:
        num_retries: attempts before it that failed.
    """

    snapshot_id: int
    summary: Mapping[str, str]
    num_retries: int = 0


# Stages a change on the newest state of the table, None if there is no table, and returns the
# transaction uncommitted. It is called once per attempt. It raises OutputRefused if the table's
# state forbids the change.
Stage = Callable[["Table | None"], "Transaction"]


def commit_change(
    catalog: Catalog,
    table: str,
    key: CommitKey,
    stage: Stage,
    *,
    before: Callable[[], None] = lambda: None,
    retrying: Retrying | None = None,
) -> Committed:
    """Commit a change, or find that it is in the table already.

    Args:
        table: the table's name, with its namespace.
        stage: must pass `key.to_properties()` to `update_snapshot`.
        before: called before each attempt; may raise to give up.

    Raises:
        CommitUnknown: no answer, and the commit is not in the table; it may still appear.
        OutputError: the catalog refused the commit for good, or other writers were always faster.
        Exception: whatever `stage` and `before` raise. The commit is not in the table then.
    """
    return _Attempts(catalog, table, key, stage, retrying or Retrying()).run(before)


@dataclass(slots=True)
class _Attempts:
    """The attempts at one commit."""

    catalog: Catalog
    table: str
    key: CommitKey
    stage: Stage
    retrying: Retrying
    unknown: list[Transaction] = field(default_factory=list)  # the attempts without an answer
    num_silent: int = 0

    def run(self, before: Callable[[], None]) -> Committed:
        began = time.monotonic()
        num_retries = 0
        while not isinstance(found := self._try(before), Committed):
            if time.monotonic() - began > self.retrying.max_seconds:
                raise self._give_up("other writers were faster", num_retries + 1, found) from found
            self.retrying.wait(num_retries)
            num_retries += 1
        return replace(found, num_retries=num_retries)

    def _try(self, before: Callable[[], None]) -> Committed | Exception:
        """Look for the commit, and attempt it; return it, or the error after which to try again."""
        from pyiceberg.exceptions import (
            CommitFailedException,
            TableAlreadyExistsError,
            TooManyRequestsError,
        )

        found = self._load()
        if isinstance(found, Exception):
            return self._count_silence(found)
        if found is not None and (snapshot := find_commit(found, self.key.token)):
            return self._land(snapshot)
        before()
        try:
            transaction = self.stage(found)
        except Exception as error:
            if self._may_land(found):
                raise self._give_up("it was not tried again", self.num_silent, error) from error
            raise
        try:
            self._send(transaction)
        except (CommitFailedException, TableAlreadyExistsError, TooManyRequestsError) as error:
            # The first request may have landed, and this be the answer to its repetition.
            return self._resolve(transaction, error)
        except Exception as error:  # whatever it is, the request may have been carried out
            if _is_refusal(error):
                _discard(transaction)
                raise OutputError(
                    f"{self.table}: the catalog refused the commit: {error}. Nothing was changed; "
                    "mend the cause, then run again with --resume"
                ) from error
            self.unknown.append(transaction)
            return self._count_silence(error)
        snapshot = transaction.table_metadata.snapshot_by_id(_snapshot_id(transaction))
        assert snapshot is not None
        return self._land(snapshot)

    def _send(self, transaction: Transaction) -> None:
        """Send a transaction to the catalog, once, and leave its files whatever happens."""
        from pyiceberg.table import CreateTableTransaction
        from pyiceberg.table.update import AssertCreate, AssertTableUUID, TableRequirement

        requirements: tuple[TableRequirement, ...] = (AssertCreate(),)
        if not isinstance(transaction, CreateTableTransaction):
            metadata = transaction.table_metadata
            asserted = AssertTableUUID(uuid=metadata.table_uuid)
            requirements = (*transaction._requirements, asserted)
        table = transaction._table
        updates = transaction._updates
        response = call_in_time(
            lambda: self.catalog.commit_table(table, requirements, updates), _COMMIT_SECONDS
        )
        with suppress(Exception):  # the commit is done; the table's properties may ask for this
            self.catalog._delete_old_metadata(table.io, table.metadata, response.metadata)

    def _resolve(self, transaction: Transaction, error: Exception) -> Committed | Exception:
        """Find out whether a transaction that the catalog refused is in the table all the same."""
        found = self._load()
        if isinstance(found, Exception):
            self.unknown.append(transaction)
            return self._count_silence(found)
        if found is not None and (snapshot := find_commit(found, self.key.token)):
            self.unknown.append(transaction)
            return self._land(snapshot)
        _discard(transaction)
        return error

    def _may_land(self, table: Table | None) -> bool:
        """Return whether the catalog may yet carry out an attempt that it did not answer.

        It does not once another snapshot is the newest: attempts assert the one that they replace.
        """
        newest = table.current_snapshot() if table else None
        head = newest.snapshot_id if newest else None
        producers = (_producers(transaction)[-1] for transaction in self.unknown)
        return any(producer._parent_snapshot_id == head for producer in producers)

    def _load(self) -> Table | Exception | None:
        """Load the table; return the error if the catalog, of whatever kind, does not answer."""
        try:
            return call_in_time(lambda: load_or_none(self.catalog, self.table), _LOAD_SECONDS)
        except Exception as error:  # noqa: BLE001 - counted by the caller
            return error

    def _land(self, snapshot: Snapshot) -> Committed:
        """Remove the metadata files of all other attempts, none of which can land any more."""
        for transaction in self.unknown:
            if _snapshot_id(transaction) != snapshot.snapshot_id:
                _discard(transaction)
        return Committed(snapshot_id=snapshot.snapshot_id, summary=read_summary(snapshot))

    def _count_silence(self, error: Exception) -> Exception:
        self.num_silent += 1
        if self.num_silent > _MAX_UNKNOWN:
            raise self._give_up("the catalog did not answer", self.num_silent, error) from error
        return error

    def _give_up(self, why: str, attempts: int, error: Exception) -> OutputError:
        text = f"{self.table}: {why} in {attempts} attempts at a commit: {error}. "
        if self.unknown:
            return CommitUnknown(
                f"{text}One of them may yet be carried out, so its files stay. Run again with "
                "--resume: it first looks for the commit in the table"
            )
        return OutputError(f"{text}Nothing was changed; run again with --resume")


def load_or_none(catalog: Catalog, table: str) -> Table | None:
    """Load a table's newest metadata; None if there is no such table."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(table)
    except NoSuchTableError:
        return None


def find_commit(table: Table, token: str) -> Snapshot | None:
    """Return the snapshot of the commit with this token, wherever it is in the table's history."""
    for snapshot in reversed(table.metadata.snapshots):
        if read_summary(snapshot).get(TOKEN_PROPERTY) == token:
            return snapshot
    return None


def read_summary(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the properties in a snapshot's summary."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Delete files that no snapshot names, several at a time; some may not exist."""

    def remove(path: str) -> None:
        try:
            io.delete(path)
        except FileNotFoundError:
            return

    with ThreadPoolExecutor(_REQUESTS) as pool:
        list(pool.map(remove, paths))


def _is_refusal(error: Exception) -> bool:
    """Return whether an error says for certain that the catalog did nothing."""
    from pyiceberg import exceptions

    return isinstance(
        error,
        exceptions.BadRequestError
        | exceptions.UnauthorizedError
        | exceptions.ForbiddenError
        | exceptions.AuthorizationExpiredError
        | exceptions.OAuthError
        | exceptions.NoSuchTableError
        | exceptions.NoSuchNamespaceError
        | exceptions.ValidationException,
    )


def _snapshot_id(transaction: Transaction) -> int:
    return int(_producers(transaction)[-1].snapshot_id)


def _discard(transaction: Transaction) -> None:
    """Delete the manifests and manifest lists of a transaction that did not and cannot land."""
    for producer in _producers(transaction):
        producer._clean_all_uncommitted()


def _producers(transaction: Transaction) -> list[Any]:
    return transaction._snapshot_producers
