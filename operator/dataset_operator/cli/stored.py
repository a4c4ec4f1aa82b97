"""Reads and prints the stored history of a run whose cluster no longer exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol

import typer

from dataset_operator.cli.printing import print_log, print_table
from dataset_operator.documents import Document
from dataset_operator.errors import UserError
from dataset_operator.names import Owner
from dataset_operator.shapes import read_status
from pipeline_runtime.config import ExperimentStatus, clean

RunOption = Annotated[
    str | None, typer.Option("--run", metavar="N", help="An earlier run, from the store.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URI",
        help="Read the experiment's folder in the store, and send no request to an API server.",
    ),
]


class LogFile(Protocol):
    """The log of one process in a pod."""

    @property
    def pod(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...


class StoredRun(Protocol):
    """The stored history of a run; the runtime implements it."""

    uri: str

    def experiment(self) -> Document:
        """Return the last manifest and status."""

    def events(self) -> list[Document]:
        """Return the events, the oldest first."""

    def pods(self) -> list[Document]:
        """Return the pods as they were when their cluster was deleted."""

    @property
    def files(self) -> Sequence[LogFile]:
        """Logs of every pod."""

    def read(self, file: Any) -> Iterator[bytes]:
        """Yield the bytes of a log."""

    def read_driver(self, submission_id: str) -> Iterator[bytes]:
        """Yield the log of an attempt's driver."""


def open_stored(program: typer.Context, document: Document, run: str | None) -> StoredRun:
    """Open the stored history of an experiment's run, by default the current one.

    Raises:
        UserError: the experiment has no run yet.
    """
    uri, present = locate_run(document)
    number = run or str(present)
    run_id = Owner.of(document).run_id(int(number)) if number.isdecimal() else number
    stored: StoredRun = program.obj.open_history(uri, run_id)
    return stored


def has_run(status: ExperimentStatus) -> bool:
    """Return whether an experiment has a run, and a folder in the store."""
    return status.run is not None and status.artifacts_uri is not None


def locate_run(document: Document) -> tuple[str, int]:
    """Return the URI of an experiment's folder in the store, and the number of its current run.

    Raises:
        UserError: the experiment has no run yet.
    """
    name, status = document["metadata"]["name"], read_status(document.get("status"))
    if status.artifacts_uri is None or status.run is None:
        raise UserError(f"{name} has no run yet; see `lastmile describe {name}`")
    return status.artifacts_uri, status.run


def print_pods(stored: StoredRun) -> None:
    """Print a table of the stored logs of all pods."""
    rows = [(file.pod, file.name, f"{file.num_bytes:,}") for file in stored.files]
    if not rows:
        raise UserError(f"{stored.uri} has no logs of pods; {_NO_LOGS}")
    print_table(("POD", "FILE", "BYTES"), rows)


def print_pod(stored: StoredRun, pod: str, name: str | None) -> None:
    """Print the stored logs of one pod: each below its name, or only the named one."""
    files = [file for file in stored.files if file.pod == pod]
    if not files:
        known = ", ".join(sorted({file.pod for file in stored.files})) or "none"
        raise UserError(f"{stored.uri} has no logs of {pod}; it has those of: {known}")
    chosen = [file for file in files if name is None or file.name.endswith(name)]
    if not chosen:
        raise UserError(f"{pod} has no file {name}; see `lastmile logs NAME --pods`")
    for file in chosen:
        if name is None:
            print(f"==> {clean(file.name)} <==", flush=True)
        print_log(stored.read(file))


_NO_LOGS = "they are stored if the operator's setting `history` is on and artifacts go to a store"
