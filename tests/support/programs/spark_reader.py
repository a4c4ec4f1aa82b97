"""Reads tables of a SQL catalog on SQLite with Spark and Iceberg's own Java library, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from tools.go_tools import ToolError
from tools.packages import ICEBERG_SPARK, fetch, find_jars

_ROOT = Path(__file__).resolve().parents[3]
# Not in the lock, since it takes 400 MB: `make bench-iceberg` installs it too.
_PEERS = _ROOT / "build" / "iceberg-peers"
_SECONDS = 300.0
_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

settings, queries = json.loads(sys.argv[1]), json.loads(sys.argv[2])
builder = SparkSession.builder.master("local[1]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = [[row.asDict(recursive=True) for row in spark.sql(query).collect()] for query in queries]
print("ROWS" + json.dumps(rows, default=str))
"""


def prepare_spark() -> None:
    """Install PySpark, and fetch Iceberg's jars for it. Raises ToolError if that fails."""
    subprocess.run(["make", "-s", "build/iceberg-peers"], cwd=_ROOT, check=True)
    if not (_PEERS / "pyspark").is_dir():
        raise ToolError("PySpark is not installed: run `make build/iceberg-peers`")
    fetch(ICEBERG_SPARK)


def query_spark(folder: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """Return the rows of each query; a value that JSON lacks is a text.

    Args:
        folder: the folder of `make_lake`, whose catalog the queries call `lake`.
    """
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(map(str, find_jars(ICEBERG_SPARK).glob("*.jar"))),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{folder}/catalog.db",
        "spark.sql.catalog.lake.warehouse": f"file://{folder}/lake",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(settings), json.dumps(queries)],
        env={**os.environ, "PYTHONPATH": str(_PEERS), "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return cast("list[list[dict[str, Any]]]", json.loads(done.stdout.rpartition("ROWS")[2]))
