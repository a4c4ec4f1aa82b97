"""Tables in an S3 store are read by the environment's credentials, in other processes too."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_tables import Lake, read_all, where
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField
from s3_server import S3Server

from pipeline_runtime.errors import SourceError

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "user", LongType(), required=False),
)


def test_rows_of_a_bucket_in_a_store(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    with s3_server.bucket("lake") as s3:
        lake = Lake(tmp_path, warehouse="s3://lake/w")
        table = lake.create("events", SCHEMA, ("user", BucketTransform(4)))
        users = pa.array([i % 9 for i in range(100)])
        table.append(pa.table({"id": pa.array(range(100)), "user": users}))
        source = lake.open("events")
        scan = source.scan([where("user = 5", source.schema)], ["id"])
        assert scan.is_remote
        assert scan.pruning.files_read == 1
        rows = read_all(pickle.loads(pickle.dumps(source)), units=source.scan(()).units)
        assert sorted(rows["id"].to_pylist()) == list(range(100))
        [unit, *_] = scan.units
        s3.delete_file(unit.path)  # type: ignore[attr-defined]
        with pytest.raises(SourceError, match="gone"):
            next(iter(source.read(unit, ["id"], 10)))
        with pytest.raises(SourceError, match="gone"):
            lake.open("events").scan(())
