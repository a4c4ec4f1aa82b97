"""Log records: one JSON object a line, with what the record is about; text on a laptop.

What a pass is about is bound once, in its own task; every record of that task then carries it,
whichever module wrote it. A record's own `extra` comes first.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

FIELDS = ("namespace", "experiment", "attempt", "reason")
_LOG = logging.getLogger(__name__)
# The API server's words of a namespace, in Kopf's and asyncio's.
_REFUSAL = re.compile(r'cannot (list|watch) resource .* in the namespace "')
_NOTHING: Mapping[str, object] = MappingProxyType({})
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default=_NOTHING)


def set_up_logging(*, as_text: bool, verbose: bool) -> None:
    """Write records, of a defect that ends the process too, to standard error.

    Args:
        verbose: show Kopf's own and DEBUG too.
    """
    handler = build_handler(sys.stderr, as_text=as_text, verbose=verbose)
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _LOG.critical("ended by a defect", exc_info=error)
    if not verbose:  # Kopf tells of every handler
        logging.getLogger("kopf").setLevel(logging.WARNING)


def build_handler(stream: TextIO, *, as_text: bool, verbose: bool) -> logging.Handler:
    """Build the handler that writes the log records."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    if not verbose:
        handler.addFilter(_is_news)
    return handler


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for Kopf's messages about a namespace that may not be watched.

    `serve` tells of that in one line. Kopf (1.45) asks nine times for each resource with a line
    for each time, and ends with a traceback from each of its tasks.
    """
    is_kopfs = record.name.partition(".")[0] in ("kopf", "asyncio")
    return not (is_kopfs and _REFUSAL.search(record.getMessage()))


def bind(**fields: object) -> None:
    """Say what this task's records are about, from now on; any of FIELDS."""
    _about.set({**_about.get(), **fields})


def _read_fields(record: logging.LogRecord) -> dict[str, object]:
    about = _about.get()
    values = {name: getattr(record, name, about.get(name)) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, then what it is about and, of an error, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_read_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`12:00:00 INFO team/clicks (attempt 2, JobFailed): message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback of an error below it."""
        fields = _read_fields(record)
        name = "/".join(str(fields[key]) for key in FIELDS[:2] if key in fields)
        more = [f"attempt {fields['attempt']}"] if "attempt" in fields else []
        more += [str(fields["reason"])] if "reason" in fields else []
        about = " ".join(filter(None, [name, f"({', '.join(more)})" if more else ""]))
        moment = self.formatTime(record, "%H:%M:%S")
        line = f"{moment} {record.levelname} {about + ': ' if about else ''}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
