"""The exceptions of `pipeline_runtime`, all of them, so that a caller can catch one family.

    LastmileError
    ├── ManifestError      a manifest that breaks rules: every problem found, not just the first
    ├── ExpressionError    a filter or derive text that is wrong, with the place in the text
    ├── SourceError        a table that cannot be read: missing, corrupt, mixed schemas
    │   └── StoreError     a store that cannot be reached or refuses; it may answer the next time
    ├── StepError          a step that cannot be built, or whose work raised, with file and rows
    ├── FeedError          the training feed lost data it cannot make again
    ├── CheckpointError    a checkpoint of another run, of other data or of another version
    ├── TrainingError      the entrypoint is missing, has the wrong shape, or raised
    ├── AlreadyComplete    nothing is left to resume
    └── Interrupted        the person pressed Ctrl-C; what was saved is named

Every message says the rule, what was got and what to do. The command line maps them to exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Of the text beside the place that an error marks.
_MAX_SHOWN_CHARS = 60


class LastmileError(Exception):
    """Base of everything that Lastmile raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One broken rule of a manifest.

    `path` is the field, dotted from the document's root (`spec.dataWorkers.maxReplicas`), empty
    when the document as a whole is meant. `line` and `column` count from 1, None when unknown.
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
    """A manifest breaks one or more rules; `problems` holds every one, in the file's order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ExpressionError(LastmileError):
    """An expression is wrong at a place in its text; printing shows the text and a caret."""

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
    """A part of a line, no longer than a terminal is wide, and with nothing that moves its cursor.

    Args:
        keeps_end: whether its end is kept; else its beginning.
    """
    if len(text) > _MAX_SHOWN_CHARS:
        text = f"…{text[-_MAX_SHOWN_CHARS:]}" if keeps_end else f"{text[:_MAX_SHOWN_CHARS]}…"
    return "".join(char if char.isprintable() else "�" for char in text)


def _rebuild_expression_error(message: str, text: str, offset: int, length: int) -> ExpressionError:
    return ExpressionError(message, text=text, offset=offset, length=length)


class SourceError(LastmileError):
    """A table cannot be found or read; the message names the file."""


class StoreError(SourceError):
    """A store cannot be reached, or refuses to answer; the next attempt may find it well again.

    It is never taken for an answer: neither for "there is no such file" nor for a bad manifest.
    """


class StepError(LastmileError):
    """A step cannot be built against its input, or raised while it ran."""


class FeedError(LastmileError):
    """The feed of training batches failed for a reason that is not a step's or a source's."""


class CheckpointError(LastmileError):
    """A checkpoint belongs to another run, to other data, or to another version."""


class TrainingError(LastmileError):
    """The training entrypoint could not be loaded, or raised."""


class AlreadyComplete(LastmileError):
    """The run that was to be resumed has nothing left to do; its report stands.

    `summary` is its summary.json.
    """

    def __init__(self, message: str, *, summary: str) -> None:
        super().__init__(message)
        self.summary = summary


class Interrupted(LastmileError):
    """The run was stopped by a signal; the last whole checkpoint is kept."""
