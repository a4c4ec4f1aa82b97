"""Reads a run's history from the store, for the cluster's commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline_runtime.config.texts.distribution import explain_missing

if TYPE_CHECKING:  # imported when a command asks: pyarrow takes half a second
    from pipeline_runtime.history.reading import StoredRun


def open_history(uri: str, run: str | None) -> StoredRun:
    """See `history.reading`."""
    from pipeline_runtime.history.reading import open_history as open_stored

    return open_stored(uri, run)


def list_runs(uri: str) -> list[dict[str, Any]]:
    """Return the runs below a URI, each as `lastmile runs --json` prints it; none if it is missing.

    Raises StoreError if the store does not answer.
    """
    from pipeline_runtime.cli.runs import describe
    from pipeline_runtime.errors import SourceError, StoreError
    from pipeline_runtime.runs.listing import list_runs as list_stored

    try:
        return [describe(run) for run in list_stored(uri)]
    except StoreError:
        raise
    except SourceError:  # the first run has not written anything yet
        return []


def look_back(uri: str, run_id: str) -> tuple[list[Any], list[Any], str | None]:
    """Return the pods and events of a run, and the reason if they cannot be read."""
    try:
        from pipeline_runtime.history.reading import look_back as look
    except ModuleNotFoundError as error:
        return [], [], explain_missing(error.name)
    return look(uri, run_id)
