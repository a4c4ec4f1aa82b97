"""Parses what a driver reports about tables, those it reads, keeps and has written, and models.

While it runs, its metrics have the tables that it reads and keeps, and the models, as labels
(`runtime_metrics`); at its end, its log has all of them in lines such as
`read: catalog=lake table=db.rows snapshot_id=5`. The pod runs a user's code, so the models of the
status check every value, and what they refuse is skipped.
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
    MAX_STATUS_MODELS,
    MAX_STATUS_SNAPSHOTS,
    MaterializationStatus,
    ModelStatus,
    OutputStatus,
    SnapshotStatus,
    StatusModel,
)

_READ = "lastmile_read_snapshot_info"
_MODEL = "lastmile_model_info"
_KEPT = "lastmile_materialization_info"
_COUNTS = {
    "lastmile_materialization_partitions": "partitions",
    "lastmile_materialization_complete_partitions": "complete_partitions",
}
TABLE_NAMES = (_READ, _MODEL, _KEPT, *_COUNTS)
MAX_COUNT = 2**31 - 1  # in the CRD
_COUNTED = {"rows", "files", "bytes"}  # in each line about a written table
# In JSON, a letter may be escaped; any other backslash, such as that of a line break, ends a line.
_PAIR = rb'[a-z0-9_]{1,32}=(?:[^\s\\"=]|\\u[0-9a-f]{4})+'
_LINE = re.compile(rb"(read|model|materialized|output): (%b(?: %b)*)" % (_PAIR, _PAIR))

_Model = TypeVar("_Model", bound=StatusModel)


def parse_tables(samples: Iterable[Sample]) -> CatalogTables:
    """Return the tables in samples of TABLE_NAMES."""
    reads: list[Mapping[str, str]] = []
    models: list[Mapping[str, str]] = []
    kept: dict[str, str] = {}
    for sample in samples:
        if sample.name == _READ and sample.value == 1.0:
            reads.append(sample.labels)
        elif sample.name == _MODEL and sample.value == 1.0:
            models.append(sample.labels)
        elif sample.name == _KEPT and sample.value == 1.0:
            kept |= sample.labels
        elif sample.name in _COUNTS and 0.0 <= sample.value <= MAX_COUNT:
            kept[_COUNTS[sample.name]] = str(int(sample.value))
    return _build(reads, models, kept)


def parse_lines(log: bytes) -> tuple[WrittenTable | None, CatalogTables]:
    """Return the tables that the end of a log names: the written one, and those that are read.

    The log may be a string in JSON. The last line of a kind that can be read counts.
    """
    reads: list[Mapping[str, str]] = []
    models: list[Mapping[str, str]] = []
    kept: Mapping[str, str] = {}
    written: WrittenTable | None = None
    for kind, text in _LINE.findall(log):
        fields = _split(text)
        if kind == b"materialized":
            kept = fields
        elif kind == b"read":
            reads.append(fields)
        elif kind == b"model":
            models.append(fields)
        else:
            written = _build_written(fields) or written
    return written, _build(reads[-MAX_STATUS_SNAPSHOTS:], models[-MAX_STATUS_MODELS:], kept)


def _build_written(fields: Mapping[str, str]) -> WrittenTable | None:
    found = _check(OutputStatus, fields) if fields.keys() >= _COUNTED else None
    if found is None:
        return None
    return WrittenTable(
        rows=found.rows,
        files=found.files,
        num_bytes=found.bytes,
        partitions=found.partitions,
        complete_partitions=found.complete_partitions,
        snapshot_id=found.snapshot_id,
    )


def _split(text: bytes) -> Mapping[str, str]:
    """Return the fields of a line; none if it is not a valid string in JSON."""
    try:
        line = from_json(b'"' + text + b'"')
    except ValueError:
        return {}
    return dict(pair.split("=", 1) for pair in line.split())


def _build(
    reads: Iterable[Mapping[str, str]],
    models: Iterable[Mapping[str, str]],
    kept: Mapping[str, str],
) -> CatalogTables:
    found = filter(None, (_check(SnapshotStatus, fields) for fields in reads))
    named = ({key.removeprefix("model_"): v for key, v in fields.items()} for fields in models)
    called = filter(None, (_check(ModelStatus, fields) for fields in named))
    return CatalogTables(
        models=tuple(islice(dict.fromkeys(called), MAX_STATUS_MODELS)),
        snapshots=tuple(islice(dict.fromkeys(found), MAX_STATUS_SNAPSHOTS)),
        materialization=_check(MaterializationStatus, kept),
    )


def _check(model: type[_Model], fields: Mapping[str, str]) -> _Model | None:
    given = {name: value for name, value in fields.items() if value}
    try:
        return model.model_validate_strings(given, by_alias=False, by_name=True)
    except ValidationError:
        return None
