"""What commands show of a run whose cluster is gone, from the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol

import typer

from dataset_operator.cli.text import print_log, print_table
from dataset_operator.errors import UserError
from dataset_operator.names import Owner
from dataset_operator.observed import Document
from pipeline_runtime.config import clean

RunOption = Annotated[
    str | None, typer.Option("--run", metavar="N", help="An earlier run, from the store.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URI",
        help="The experiment's folder in the store; no API server is asked then.",
    ),
]


class LogFile(Protocol):
    """A log of one of a pod's processes."""

    @property
    def pod(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...


class StoredRun(Protocol):
    """What is stored of a run; the runtime lends it."""

    uri: str

    def experiment(self) -> Document:
        """Manifest and status as they last were."""

    def events(self) -> list[Document]:
        """Events, the oldest first."""

    def pods(self) -> list[Document]:
        """Pods as they were when their cluster went."""

    @property
    def files(self) -> Sequence[LogFile]:
        """Logs of every pod."""

    def read(self, file: Any) -> Iterator[bytes]:
        """A log's bytes."""

    def read_driver(self, submission_id: str) -> Iterator[bytes]:
        """The log of an attempt's driver."""


def open_stored(program: typer.Context, document: Document, run: str | None) -> StoredRun:
    """What is stored of an experiment's run, the present one if none is named.

    Raises:
        UserError: there was no run yet.
    """
    owner, status = Owner.of(document), document.get("status") or {}
    if "artifactsUri" not in status:
        raise UserError(f"{owner.name} has no run yet; see `lastmile describe {owner.name}`")
    number = run or str(status["run"])
    run_id = owner.run_id(int(number)) if number.isdigit() else number
    stored: StoredRun = program.obj.open_history(status["artifactsUri"], run_id)
    return stored


def print_pods(stored: StoredRun) -> None:
    """Which pods have left logs, and how much of what."""
    rows = [(file.pod, file.name, f"{file.num_bytes:,}") for file in stored.files]
    if not rows:
        raise UserError(f"{stored.uri} holds no logs of pods; {_NO_LOGS}")
    print_table(("POD", "FILE", "BYTES"), rows)


def print_pod(stored: StoredRun, pod: str, name: str | None) -> None:
    """What one pod has left, each file below its name; one alone as it is."""
    files = [file for file in stored.files if file.pod == pod]
    if not files:
        known = ", ".join(sorted({file.pod for file in stored.files})) or "none"
        raise UserError(f"{stored.uri} holds no logs of {pod}; it has those of: {known}")
    chosen = [file for file in files if name is None or file.name.endswith(name)]
    if not chosen:
        raise UserError(f"{pod} left no file {name}; see `lastmile logs NAME --pods`")
    for file in chosen:
        if name is None:
            print(f"==> {clean(file.name)} <==", flush=True)
        print_log(stored.read(file))


_NO_LOGS = "they are kept where the operator's setting `history` is on and the artifacts in a store"
