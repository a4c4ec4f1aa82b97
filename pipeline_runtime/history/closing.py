"""Writes a run's history to the store before its cluster is deleted: `lastmile keep-history`.

A short-lived pod runs it. The operator has the events, decisions and status but no credentials of
the store, so it hands them to the pod as a file. The pod also deletes history that is too old, of
other runs of the same experiment. It never touches checkpoints and reports, which are in other
folders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import pyarrow.fs as pafs
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from pipeline_runtime.errors import LastmileError, SourceError, StoreError
from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision
from pipeline_runtime.run.decisions import keep_decisions
from pipeline_runtime.sources.filesystem import Location, open_location
from pipeline_runtime.sources.stores import asking, read_file, write_files

FOLDER = "history"
EVENTS_FILE = "events.json"
EXPERIMENT_FILE = "experiment.json"  # as the operator last saw it: metadata, spec and status
PODS_FILE = "pods.json"
DECISIONS_FILE = "decisions.json"
_PURPOSE = "keep the history there"
_MAX_BYTES = 64 << 20  # of a stored file; the operator hands over 128 KiB at a time
_RUN_ID = re.compile(r"([0-9a-f]{8})-([0-9]+)")


class Payload(BaseModel):
    """The data that the operator hands over."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)

    version: Literal[1]
    experiment: dict[str, Any] | None = None
    status: dict[str, Any] = Field(default_factory=dict)
    events: tuple[dict[str, Any], ...] = ()
    events_cut: int = 0
    """Number of older events that did not fit."""
    pods: tuple[dict[str, Any], ...] = ()
    decisions: Annotated[tuple[ScalingDecision, ...], Field(max_length=100)] = ()


def parse_payload(text: str) -> Payload:
    """Parse the operator's data. Raises LastmileError if it is invalid."""
    try:
        return Payload.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise LastmileError(
            f"--payload: must be the operator's data; {place}: {first['msg']}"
        ) from error


def keep_history(uri: str, run_id: str, payload: Payload) -> list[str]:
    """Write the history, merged with that of the run's earlier clusters, and return the URIs.

    Args:
        uri: the experiment's folder.

    Raises:
        StoreError: the store refuses the request.
    """
    folder = open_location(uri).join(FOLDER, run_id)
    events = merge_events(_read_list(folder.join(EVENTS_FILE)), payload.events)
    pods = {_find_uid(pod): pod for pod in (*_read_list(folder.join(PODS_FILE)), *payload.pods)}
    decisions = [decision.model_dump(mode="json", by_alias=True) for decision in payload.decisions]
    documents: dict[str, Any] = {
        EVENTS_FILE: events,
        EXPERIMENT_FILE: {**(payload.experiment or {}), "status": payload.status},
        PODS_FILE: list(pods.values()),
        DECISIONS_FILE: decisions,
    }
    files = {n: (json.dumps(value, indent=1) + "\n").encode() for n, value in documents.items()}
    write_files(folder, files, _PURPOSE)
    written = [folder.join(name).uri for name in documents]
    return [*written, *_keep_decisions(uri, run_id, payload.decisions)]


def _keep_decisions(uri: str, run_id: str, decisions: Sequence[ScalingDecision]) -> list[str]:
    """Write the decisions beside the report too, where jobs on the head left the earlier ones."""
    if not decisions:
        return []
    try:
        return keep_decisions(uri, run_id, decisions, wait_seconds=0.0)
    except StoreError:
        raise
    except SourceError:
        return []  # no driver made a folder for the run, so only the history has the decisions


def merge_events(
    before: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the events in order of their last occurrence; a newer report replaces an older one."""
    by_key = {_key_of(event): event for event in (*before, *new)}
    return sorted(by_key.values(), key=lambda event: str(event.get("lastTimestamp") or ""))


def _key_of(event: Mapping[str, Any]) -> str:
    return _find_uid(event) or json.dumps(event, sort_keys=True)


def _find_uid(document: Mapping[str, Any]) -> str | None:
    """Return the uid of a stored object; None if others have written something else there."""
    metadata = document.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return uid if isinstance(uid, str) else None


def _read_list(file: Location) -> list[Any]:
    """Return the list in a file; empty if there is no file, or it cannot be parsed."""
    content = read_file(file, _PURPOSE, _MAX_BYTES)
    if content is None:
        return []
    try:
        found = from_json(content)
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def prune_history(uri: str, run_id: str, keep_days: int, now: datetime) -> list[str]:
    """Delete the history of the experiment's older runs if all of its files are past `keep_days`.

    Args:
        uri: the experiment's folder. Another experiment of the same name may have left history in
            it; the ids of its runs begin with another uid, and it stays.
        run_id: the present run, whose history stays.
        keep_days: 0 keeps everything.

    Raises:
        StoreError: the store refuses the request.
    """
    mine = _RUN_ID.fullmatch(run_id)
    if keep_days <= 0 or mine is None:
        return []
    root = open_location(uri).join(FOLDER)
    with asking(root.uri, "delete old history"):
        return list(_prune(root, mine, now - timedelta(days=keep_days)))


def _prune(root: Location, mine: re.Match[str], oldest: datetime) -> Iterator[str]:
    store = root.filesystem
    for info in store.get_file_info(pafs.FileSelector(root.path, allow_not_found=True)):
        other = _RUN_ID.fullmatch(info.base_name)
        if info.type != pafs.FileType.Directory or other is None or other[1] != mine[1]:
            continue
        if int(other[2]) < int(mine[2]) and _is_older(store, info.path, oldest):
            store.delete_dir(info.path)
            yield root.join(info.base_name).uri


def _is_older(store: Any, path: str, moment: datetime) -> bool:
    """Return whether all files below are older than `moment`; False if the store gives no times."""
    infos = store.get_file_info(pafs.FileSelector(path, recursive=True))
    times = [info.mtime for info in infos if info.type == pafs.FileType.File]
    return bool(times) and all(
        time is not None and time.replace(tzinfo=time.tzinfo or UTC) < moment for time in times
    )
