"""All exceptions of `pipeline_runtime`, which share one base class.

    LastmileError
    ├── ManifestError      a manifest breaks rules; has every problem, not just the first
    ├── ExpressionError    a filter or derive text is wrong; has the place in the text
    ├── SourceError        a table cannot be read: missing, corrupt, mixed schemas
    │   └── StoreError     a store cannot be reached or refuses; it may answer the next time
    ├── StepError          a step cannot be built, or raised; has file and rows
    ├── FeedError          the training feed lost data that it cannot produce again
    ├── CheckpointError    a checkpoint of another run, of other data or of another version
    ├── LoaderError        a loader is used where it cannot run, or not as it can
    ├── TrainingError      the user's training code is missing, does not fit, or raised
    ├── ExportError        a model cannot be written in this format
    ├── OutputError        a table cannot be written: no room, or another attempt writes it
    │   └── OutputRefused  a table must not be written: another attempt would end the same way
    ├── FolderTaken        a run's folder holds another run
    │   ├── NameTaken      a folder of the run's name does
    │   └── FolderInUse    another process writes there; it may have ended the next time
    ├── AlreadyComplete    there is nothing to resume
    └── Interrupted        a signal, such as that of Ctrl-C, stopped the run

Every message has the rule, the value found, and what to do. The command line maps exceptions to
exit codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Length of the marked text, and of the text on each side of it.
_MAX_SHOWN_CHARS = 60


class LastmileError(Exception):
    """Base class of all errors that Lastmile raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One broken rule of a manifest.

    `path` is the dotted path of the field from the document's root, such as
    `spec.dataWorkers.maxReplicas`, or empty for the whole document. `line` and `column` count from
    1; None if unknown.
    """

    path: str
    message: str
    file: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ManifestError(LastmileError):
    """A manifest breaks one or more rules; `problems` lists all, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ExpressionError(LastmileError):
    """An expression is wrong; printing the error shows the text, and a caret at the place."""

    def __init__(self, message: str, *, text: str, offset: int, length: int = 1) -> None:
        self.message = message
        self.text = text
        self.offset = offset
        self.length = max(1, length)
        super().__init__(message, text, offset, length)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_expression_error, (self.message, self.text, self.offset, self.length)

    def __str__(self) -> str:
        start = self.text.rfind("\n", 0, self.offset) + 1
        end = self.text.find("\n", self.offset)
        line = self.text[start : end if end >= 0 else len(self.text)]
        column = self.offset - start
        before = _cut(line[:column], keeps_end=True)
        marked = _cut(line[column : column + self.length], keeps_end=False)
        after = _cut(line[column + self.length :], keeps_end=False)
        caret = "^" * max(1, len(marked))
        return f"{self.message}\n    {before}{marked}{after}\n    {' ' * len(before)}{caret}"


def _cut(text: str, *, keeps_end: bool) -> str:
    """Shorten a part of a line to fit a terminal, and replace control characters.

    Args:
        keeps_end: True to keep the end, False to keep the beginning.
    """
    if len(text) > _MAX_SHOWN_CHARS:
        text = f"…{text[-_MAX_SHOWN_CHARS:]}" if keeps_end else f"{text[:_MAX_SHOWN_CHARS]}…"
    return "".join(char if char.isprintable() else "�" for char in text)


def _rebuild_expression_error(message: str, text: str, offset: int, length: int) -> ExpressionError:
    return ExpressionError(message, text=text, offset=offset, length=length)


class SourceError(LastmileError):
    """A table cannot be found or read; the message names the file.

    `field` is the path of the field of the manifest that is wrong, and "" if no single one is. A
    source knows it from its own model on (`iceberg.tag`); who opens the source knows the rest.
    """

    def __init__(self, message: str = "", *, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


@contextmanager
def below_field(path: str) -> Iterator[None]:
    """Put the path of the field that holds a source before the field of its SourceError."""
    try:
        yield
    except SourceError as error:
        if error.field:
            error.field = f"{path}.{error.field}"
        raise


class StoreError(SourceError):
    """A store cannot be reached, or refuses to answer; the next attempt may succeed.

    It never means that a file does not exist, or that the manifest is wrong.
    """


class StepError(LastmileError):
    """A step cannot be built for its input, or raised an error."""


class FeedError(LastmileError):
    """The feed of training batches failed, but not because of a step or a source."""


class CheckpointError(LastmileError):
    """A checkpoint belongs to another run, to other data, or to another version."""


class LoaderError(LastmileError):
    """A loader cannot run these steps, or is used in a process or in a way that it cannot serve."""


class TrainingError(LastmileError):
    """The training entrypoint, model or script could not be loaded, or raised."""


class ExportError(LastmileError):
    """A model cannot be traced, or not in this format, or a package for it is missing."""


class OutputError(LastmileError):
    """The output table cannot be written at the moment; the next attempt may succeed."""


class OutputRefused(OutputError):
    """The output table must not be written, and another attempt would end the same way.

    Something else is in its place, its source has changed, or its rows do not fit its partitions.
    """


class FolderTaken(LastmileError):
    """The folder of a run holds another run."""


class NameTaken(FolderTaken):
    """A folder with the name of the run is taken; a run that begins a second later has another."""


class FolderInUse(FolderTaken):
    """Another process writes to the folder of a run; the next attempt may succeed."""


class AlreadyComplete(LastmileError):
    """The run to resume is already complete.

    `summary` is the content of its summary.json.
    """

    def __init__(self, message: str, *, summary: str) -> None:
        super().__init__(message)
        self.summary = summary


class Interrupted(LastmileError):
    """The run was stopped by a signal; its last whole checkpoint is kept."""
