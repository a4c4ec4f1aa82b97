"""A URI names a place in a store; it never decides where credentials are sent."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples
from pyarrow import fs as pafs
from pydantic import ValidationError

from pipeline_runtime.config import (
    ManifestError,
    ParquetSource,
    RuleSet,
    parse_experiment,
    parse_stored,
)
from pipeline_runtime.config.texts.storage_uri import find_uri_fault, has_scheme, split_storage_uri
from pipeline_runtime.errors import SourceError
from pipeline_runtime.history import reading
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet

REFUSED = {
    "an endpoint in the query": "gs://b/p?endpoint_override=evil.example",
    "an endpoint of S3": "s3://b/p?endpoint_override=evil.example&scheme=http",
    "an option of a local filesystem": "file:///p?use_mmap=true",
    "an empty query": "s3://b/p?",
    "a fragment": "gs://b/p#x",
    "a query without a path": "gs://b?endpoint_override=evil.example",
    "a user": "gs://anonymous@b/p",
    "a user and a password": "hdfs://me:word@host/p",
    "a user of git": "s3://git@b/p",
    "a port of a bucket": "gs://b:80/p",
    "a host of a file": "file://evil.example/p",
    "no bucket": "s3:///p",
    "a host that gets Azure's token": "abfs://c@evil.example/p",
    "a host that looks like Azure's": "abfss://c@a.dfs.core.windows.net.evil.example/p",
    "a container as a host": "abfs://evil.example/c/p",
    "a web server": "https://evil.example/p",
    "another store's driver": "sftp://evil.example/p",
    "a bucket with a space": "gs://b b/p",
    "encoded dots": "file:///a/%2e%2e/b",
}
ACCEPTED = [
    "s3://bucket/a/b",
    "S3://bucket.name/a_b",
    "gs://bucket",
    "gs://bucket/day=2026-01-*/",
    "gcs://b/p",
    "hdfs://host:8020/p",
    "hdfs:///p",
    "abfss://container@account.dfs.core.windows.net/p",
    "file:///data/x%20y",
    "/data/C#/part-?.parquet",
    "experiments/",
]


@pytest.mark.parametrize("uri", REFUSED.values(), ids=REFUSED)
def test_only_a_place_in_a_known_store_is_accepted(uri: str) -> None:
    assert find_uri_fault(uri)
    with pytest.raises(SourceError):
        open_location(uri)
    with pytest.raises(ValidationError):
        ParquetSource(uri=uri)


@pytest.mark.parametrize("uri", ACCEPTED)
def test_a_plain_place_is_accepted(uri: str) -> None:
    assert find_uri_fault(uri) is None


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "first"},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
    }


BAD = "gs://b/p?endpoint_override=evil.example"
FIELDS: dict[str, dict[str, Any]] = {
    "spec.dataset.parquet.uri": {"dataset": {"parquet": {"uri": BAD}}},
    "spec.dataset.parquet.uris[1]": {"dataset": {"parquet": {"uris": ["t/", BAD]}}},
    "spec.pipeline[0].join.parquet.uri": {
        "pipeline": [{"join": {"parquet": {"uri": BAD}, "keys": ["a"], "columns": ["b"]}}]
    },
    "spec.pipeline[0].antiJoin.parquet.uri": {
        "pipeline": [{"antiJoin": {"parquet": {"uri": BAD}, "keys": ["a"]}}]
    },
    "spec.storage.root": {"storage": {"root": BAD}},
    "spec.artifacts.uri": {"artifacts": {"uri": BAD}},
}


@pytest.mark.parametrize(("path", "spec"), FIELDS.items(), ids=FIELDS)
def test_every_uri_of_a_manifest_is_checked(path: str, spec: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_experiment(document(**spec))
    assert [problem.path for problem in caught.value.problems] == [path]
    # A URI that an earlier version accepted stays readable, but is never opened.
    experiment, unknown = parse_stored(document(**spec), RuleSet.WITHOUT_NEWER)
    assert (experiment.metadata.name, unknown) == ("first", [])


def test_a_relative_uri_cannot_begin_a_query() -> None:
    assert find_uri_fault("x?endpoint_override=evil.example")
    with pytest.raises(ManifestError):
        parse_experiment(document(artifacts={"uri": "x?endpoint_override=evil.example"}))


def test_a_question_mark_is_a_glob_below_any_root(tmp_path: Path) -> None:
    for name in ("part-1", "part-22"):
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"{name}.parquet")
    for root in (str(tmp_path), f"file://{tmp_path}"):
        table: ParquetTable = open_parquet(ParquetSource(uri="part-?.parquet"), root)
        assert len(table.scan(()).units) == 1
    found = open_location("day=?/x#y", "gs://bucket/team/")
    assert (found.path, found.filesystem) == (
        "bucket/team/day=?/x#y",
        open_location("gs://b").filesystem,
    )


def test_a_stored_uri_with_a_query_is_not_opened() -> None:
    _, _, problem = reading.look_back(f"{BAD}/clicks/", "0f3c6c1e-1")
    assert problem is not None
    with pytest.raises(SourceError):
        reading.open_history(f"{BAD}/clicks/", None)


TEXTS = ["gs", "s3", "abfs", "file", "hdfs", "://", "/", "?", "#", "&", "=", "@", ":", "b", "%3F"]
TEXTS += ["endpoint_override", "scheme=http", "evil.example", "anonymous", "\t", "\n", "\\", " "]
TEXTS += ["%2e", "%23", "..", "é", "[", "]", ";", "a.dfs.core.windows.net"]
PIECES = st.sampled_from([*TEXTS, "c@acc.dfs.core.windows.net"])
STARTS = st.sampled_from(["gs://b", "gs://", "abfs://c@acc.dfs.core.windows.net/", "s3://b/", ""])


@given(start=STARTS, pieces=st.lists(PIECES, max_size=7))
@settings(max_examples=examples(100), deadline=None)
def test_no_accepted_uri_gives_pyarrow_an_option(start: str, pieces: list[str]) -> None:
    uri = start + "".join(pieces)
    if find_uri_fault(uri) is not None or not has_scheme(uri):
        return
    scheme, authority, _ = split_storage_uri(uri)
    if scheme in ("hdfs", "s3"):  # hdfs needs Java; s3 is never passed to `from_uri`
        return
    plain, _ = pafs.FileSystem.from_uri(f"{scheme}://{authority}/")
    try:
        found, _ = pafs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid:
        return
    assert found == plain
    assert open_location(uri).filesystem == plain
