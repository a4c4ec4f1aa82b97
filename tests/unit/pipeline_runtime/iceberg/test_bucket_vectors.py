"""Buckets of values of all types are those that Iceberg's Java library computes."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from spark_tables import CORPUS

from pipeline_runtime.bucketing import bucket

VECTORS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for vector in json.loads((CORPUS / "bucket_vectors.json").read_text()):
    VECTORS[vector["type"]].append(vector)


def to_nanoseconds(text: str) -> int:
    """Return nanoseconds since 1970; Python's datetime has microseconds."""
    moment, _, rest = text.replace("-08:00", "").replace("+00:00", "").partition(".")
    seconds = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp())
    hours = 8 if text.endswith("-08:00") else 0
    return (seconds + hours * 3600) * 10**9 + int(rest.ljust(9, "0") or 0)


def to_arrow(kind: str, texts: list[str]) -> pa.Array:
    name, _, arguments = kind.removesuffix(")").removesuffix("]").replace("[", "(").partition("(")
    match name:
        case "int" | "long":
            return pa.array(map(int, texts), pa.int32() if name == "int" else pa.int64())
        case "decimal":
            precision, scale = map(int, arguments.split(","))
            return pa.array(map(Decimal, texts), pa.decimal128(precision, scale))
        case "date":
            return pa.array(map(date.fromisoformat, texts), pa.date32())
        case "time":
            return pa.array(map(time.fromisoformat, texts), pa.time64("us"))
        case "timestamp" | "timestamptz":
            zone = "UTC" if name == "timestamptz" else None
            microseconds = [to_nanoseconds(text) // 1000 for text in texts]
            return pa.array(microseconds, pa.timestamp("us", zone))
        case "timestamp_ns" | "timestamptz_ns":
            zone = "UTC" if name == "timestamptz_ns" else None
            return pa.array(map(to_nanoseconds, texts), pa.timestamp("ns", zone))
        case "string":
            return pa.array(texts)
        case "uuid":
            return pa.array((uuid.UUID(text).bytes for text in texts), pa.binary(16))
        case "fixed":
            return pa.array(map(bytes.fromhex, texts), pa.binary(int(arguments)))
    assert name == "binary", kind
    return pa.array(map(bytes.fromhex, texts))


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "numpy"])
@pytest.mark.parametrize("kind", VECTORS)
def test_buckets_are_those_of_java(kind: str, *, kernels: bool) -> None:
    vectors = VECTORS[kind]
    column = to_arrow(kind, [vector["value"] for vector in vectors])

    for count in vectors[0]["buckets"]:
        expected = [vector["buckets"][count] for vector in vectors]
        assert bucket(column, int(count), kernels=kernels).tolist() == expected
