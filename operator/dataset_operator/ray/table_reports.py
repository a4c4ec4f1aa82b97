"""Parses what a driver reports about tables: the ones it reads, keeps and has written.

While it runs, its metrics have the first two as labels (`runtime_metrics`); at its end, its log has
all three in lines such as `read: catalog=lake table=db.rows snapshot_id=5`. The pod runs a user's
code, so the models of the status check every value, and what they refuse is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeVar

from prometheus_client.samples import Sample
from pydantic import ValidationError
from pydantic_core import from_json

from dataset_operator.observed import CatalogTables, WrittenTable
from pipeline_runtime.config import (
    MAX_SAFE_INTEGER,
    MAX_STATUS_SNAPSHOTS,
    MaterializationStatus,
    SnapshotStatus,
    StatusModel,
)

_READ = "lastmile_read_snapshot_info"
_KEPT = "lastmile_materialization_info"
_COUNTS = {
    "lastmile_materialization_partitions": "partitions",
    "lastmile_materialization_complete_partitions": "complete_partitions",
}
TABLE_NAMES = (_READ, _KEPT, *_COUNTS)
_MAX_COUNT = 2**31 - 1  # in the CRD
_WRITTEN = re.compile(
    rb"output: rows=(\d{1,16}) files=(\d{1,16}) bytes=(\d{1,16})(?: snapshot=([1-9]\d{0,18})\b)?"
)
# In JSON, a letter may be escaped; any other backslash, such as that of a line break, ends a line.
_PAIR = rb'[a-z_]{1,32}=(?:[^\s\\"=]|\\u[0-9a-f]{4})+'
_LINE = re.compile(rb"(read|materialized): (%b(?: %b)*)" % (_PAIR, _PAIR))

_Model = TypeVar("_Model", bound=StatusModel)


def parse_tables(samples: Iterable[Sample]) -> CatalogTables:
    """Return the tables in samples of TABLE_NAMES."""
    reads: list[Mapping[str, str]] = []
    kept: dict[str, str] = {}
    for sample in samples:
        if sample.name == _READ and sample.value == 1.0:
            reads.append(sample.labels)
        elif sample.name == _KEPT and sample.value == 1.0:
            kept |= sample.labels
        elif sample.name in _COUNTS and 0.0 <= sample.value <= _MAX_COUNT:
            kept[_COUNTS[sample.name]] = str(int(sample.value))
    return _build(reads, kept)


def parse_lines(log: bytes) -> CatalogTables:
    """Return the tables that the end of a log names; the log may be a string in JSON."""
    reads: list[Mapping[str, str]] = []
    kept: Mapping[str, str] = {}
    for kind, text in _LINE.findall(log):
        fields = _split(text)
        if kind == b"materialized":
            kept = fields
        else:
            reads.append(fields)
    return _build(reads[-MAX_STATUS_SNAPSHOTS:], kept)


def _split(text: bytes) -> Mapping[str, str]:
    """Return the fields of a line; none if it is not a valid string in JSON."""
    try:
        line = from_json(b'"' + text + b'"')
    except ValueError:
        return {}
    return dict(pair.split("=", 1) for pair in line.split())


def _build(reads: Iterable[Mapping[str, str]], kept: Mapping[str, str]) -> CatalogTables:
    found = filter(None, (_check(SnapshotStatus, fields) for fields in reads))
    return CatalogTables(
        snapshots=tuple(islice(dict.fromkeys(found), MAX_STATUS_SNAPSHOTS)),
        materialization=_check(MaterializationStatus, kept),
    )


def _check(model: type[_Model], fields: Mapping[str, str]) -> _Model | None:
    given = {name: value for name, value in fields.items() if value}
    try:
        return model.model_validate_strings(given, by_alias=False, by_name=True)
    except ValidationError:
        return None


def parse_written(log: bytes) -> WrittenTable | None:
    """Return the numbers of the last line about a table in the end of a log, which may be JSON."""
    *_, last = [None, *_WRITTEN.finditer(log)]
    if last is None:
        return None
    rows, files, num_bytes = (min(int(number), MAX_SAFE_INTEGER) for number in last.groups()[:3])
    snapshot = last[4].decode() if last[4] else None
    return WrittenTable(rows=rows, files=files, num_bytes=num_bytes, snapshot_id=snapshot)
