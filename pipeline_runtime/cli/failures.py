"""The output and the exit code of each kind of failure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from pipeline_runtime import errors

if TYPE_CHECKING:  # the models take a quarter of a second to import
    from pipeline_runtime.config import LoadedManifest

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INVALID = 2  # also of a wrong option, as in other command-line libraries
EXIT_SOURCE = 3
EXIT_CHECKPOINT = 4
EXIT_OUTPUT = 5
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells

EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 the run failed; 2 a bad manifest or option; 3 a table or store that "
    "cannot be read; 4 a checkpoint of another run, of other data or of another version; 5 an "
    "output that must not be written; 130 stopped by Ctrl-C."
)

# Linux accepts paths of up to 4,096 bytes, too long for one line.
_MAX_SHOWN_CHARS = 200

_CODES: dict[type[errors.LastmileError], int] = {
    errors.ManifestError: EXIT_INVALID,
    errors.ExpressionError: EXIT_INVALID,
    errors.SourceError: EXIT_SOURCE,
    errors.StoreError: EXIT_SOURCE,
    errors.FolderTaken: EXIT_INVALID,
    errors.NameTaken: EXIT_INVALID,
    errors.FolderInUse: EXIT_FAILED,  # final for the operator otherwise
    errors.CheckpointError: EXIT_CHECKPOINT,
    errors.OutputRefused: EXIT_OUTPUT,
    errors.Interrupted: EXIT_INTERRUPTED,
}


def exit_code_of(kind: str | None) -> int:
    """Return the exit code of an error, by the name of its class; None means success."""
    if kind is None:
        return EXIT_OK
    by_name = {error.__name__: code for error, code in _CODES.items()}
    return by_name.get(kind, EXIT_FAILED)


@contextmanager
def exiting() -> Iterator[None]:
    """Print a LastmileError without a traceback, and exit with its code."""
    try:
        yield
    except errors.LastmileError as error:
        from pipeline_runtime.config import clean

        text = clean(str(error))  # it may quote a table, a store or a status
        print(f"error:\n{text}" if "\n" in text else f"error: {text}", file=sys.stderr)
        sys.exit(exit_code_of(type(error).__name__))
    except OSError as error:
        print(f"error: {error}; check the path and its permissions", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except UnicodeEncodeError as error:  # a path in a manifest
        refuse_encoding(str(error.object))
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "torch", "pyarrow", "numpy", "matplotlib", "jinja2"):
            raise
        from pipeline_runtime.config.texts.distribution import explain_missing

        print(f"error: {explain_missing(error.name)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def refuse_encoding(text: str) -> NoReturn:
    """Print one line about a path that the locale or UTF-8 cannot encode, and exit."""
    shown = ascii(text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…")
    print(
        f"error: {shown}: the path cannot be encoded; it must be UTF-8, but the locale's encoding "
        f"is {sys.getfilesystemencoding()}. Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, or rename it.",
        file=sys.stderr,
    )
    sys.exit(EXIT_INVALID)


@contextmanager
def placing(manifest: LoadedManifest) -> Iterator[None]:
    """Add the line of the field in the manifest to problems that a table or the code reveals."""
    try:
        yield
    except errors.ManifestError as error:
        raise errors.ManifestError([manifest.place(p) for p in error.problems]) from error
