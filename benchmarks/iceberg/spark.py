"""Spark's storage-partitioned join of the sample's tables, in a session that stays warm.

PySpark is in the folder of peers (`child`), Iceberg's jars are those of `tools.packages`. Without
Java the program fails, and the results have the reason.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pyarrow as pa

from benchmarks.harness.machine import num_cores
from benchmarks.iceberg.lakes import KEYS, MAIN_COLUMNS, SIDE_COLUMNS, Lake
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS, USER_ACTIONS
from tools.packages import ICEBERG_SPARK, fetch, find_jars

_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "0",
    "spark.driver.memory": "4g",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.iceberg.planning.preserve-data-grouping": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.v2.bucketing.allowCompatibleTransforms.enabled": "true",
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.partiallyClusteredDistribution.enabled": "false",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def join(lake: Lake, *, proves: bool) -> Iterator[pa.Table]:
    """Join, and drop the rows in Spark, so that none has to leave the JVM; yield them as proof.

    Raises RuntimeError if Spark would shuffle.
    """
    columns = ", ".join((*MAIN_COLUMNS, *SIDE_COLUMNS))
    left, right = (f"{CATALOG}.{NAMESPACE}.{layout.name}" for layout in (IMPRESSIONS, USER_ACTIONS))
    query = f"select {columns} from {left} left join {right} using ({', '.join(KEYS)})"
    found = _open_session(lake).sql(query)
    plan = found._jdf.queryExecution().executedPlan().toString()
    if "Exchange" in plan:
        raise RuntimeError(f"Spark shuffles instead of a storage-partitioned join: {plan}")
    if proves:
        yield found.toArrow()
    else:
        found.write.format("noop").mode("overwrite").save()


@cache
def _open_session(lake: Lake) -> Any:
    """Return a session whose catalog has the tables."""
    if shutil.which("java") is None:
        raise RuntimeError("Spark needs Java, which is not on PATH")
    from pyspark.sql import SparkSession  # type: ignore[import-not-found,unused-ignore]

    fetch(ICEBERG_SPARK)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        **_SETTINGS,
        "spark.jars": ",".join(str(jar) for jar in find_jars(ICEBERG_SPARK).glob("*.jar")),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{lake.uri.removeprefix('sqlite:///')}",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": str(lake.folder),
    }
    builder = SparkSession.builder.master(f"local[{num_cores()}]").appName("benchmark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
