"""Writes the Iceberg tables of this folder with Spark, and the rows that Spark reads from them.

README.md says how to run it. Tests take the tables from `tests/support/tables/spark_tables.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark.sql import SparkSession  # type: ignore[import-not-found]
from statements import EXPECTED, TABLES  # type: ignore[import-not-found]

from tools.packages import ICEBERG_SPARK, fetch, find_jars

# Metadata contains absolute paths. This one is the same on all machines; tests replace it.
WAREHOUSE = Path("/tmp/lastmile-spark-tables")
CATALOG = "lake"
NAMESPACE = "spark"
HERE = Path(__file__).parent
NUM_BUCKETS = (1, 7, 16, 1000, 2**31 - 1)


def start_spark(folder: Path) -> Any:
    """Start Spark for this process, with the catalog's database and the tables in a folder."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(str(jar) for jar in find_jars(ICEBERG_SPARK).glob("*.jar")),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        # Fewer bytes to commit: without it, each commit leaves one more file of metadata.
        "spark.sql.catalog.lake.table-default.write.metadata.delete-after-commit.enabled": "true",
        "spark.sql.catalog.lake.table-default.write.metadata.previous-versions-max": "1",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{folder}/catalog.db",
        "spark.sql.catalog.lake.warehouse": str(folder),
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]").appName("tables")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def load_table(spark: Any, name: str) -> Any:
    """Return the table as the Java API's object."""
    util = spark._jvm.org.apache.iceberg.spark.Spark3Util
    return util.loadIcebergTable(spark._jsparkSession, f"{CATALOG}.{NAMESPACE}.{name}")


def add_default_values(spark: Any) -> None:
    """Add columns whose old rows have a default value, which SQL cannot do yet."""
    jvm = spark._jvm
    types = jvm.org.apache.iceberg.types.Types
    literals = jvm.org.apache.iceberg.expressions.Literal
    update = load_table(spark, "v3_default_values").updateSchema()
    update.addColumn("weight", types.DoubleType.get(), None, literals.of(0.5))
    update.addColumn("kind", types.StringType.get(), None, literals.of("old"))
    update.commit()
    spark.sql("REFRESH TABLE lake.spark.v3_default_values")
    rows = "SELECT id, id * 10, 1.5, NULL FROM range(4, 8)"
    spark.sql(f"INSERT INTO lake.spark.v3_default_values {rows}")


def add_equality_deletes(spark: Any) -> None:
    """Delete the rows with label 1 by the column's value, as Flink does and Spark cannot."""
    iceberg = spark._jvm.org.apache.iceberg
    table = load_table(spark, "equality_deletes")
    columns = spark.sparkContext._gateway.new_array(spark._jvm.int, 1)
    columns[0] = table.schema().findField("label").fieldId()
    schema = iceberg.types.TypeUtil.select(table.schema(), spark._jvm.java.util.Set.of(columns[0]))
    factory = iceberg.data.GenericAppenderFactory(
        table.schema(), table.spec(), columns, schema, None
    )
    path = f"{table.location()}/data/equality-deletes.parquet"
    file = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(path))
    writer = factory.newEqDeleteWriter(file, iceberg.FileFormat.PARQUET, None)
    record = iceberg.data.GenericRecord.create(schema)
    record.setField("label", 1)
    writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
    spark.sql("REFRESH TABLE lake.spark.equality_deletes")


BY_JAVA = {"v3_default_values": add_default_values, "equality_deletes": add_equality_deletes}


def describe_buckets(spark: Any) -> Iterator[dict[str, Any]]:
    """Yield the buckets of values of all types that Iceberg can hash.

    Iceberg projects `x = value` to `x_bucket = number` when it plans a scan. This keeps the values
    in Java: Py4J turns each long that is small into an int.
    """
    iceberg = spark._jvm.org.apache.iceberg
    for name, texts in json.loads((HERE / "bucket_values.json").read_text()).items():
        field = iceberg.types.Types.NestedField.optional(
            1, "x", iceberg.types.Types.fromPrimitiveString(name)
        )
        schema = iceberg.Schema(spark._jvm.java.util.List.of(field))
        for text in texts:
            value = text
            if name == "binary" or name.startswith("fixed"):
                value = spark._jvm.java.nio.ByteBuffer.wrap(bytes.fromhex(text))
            elif name in ("int", "long"):
                value = int(text)
            buckets = {}
            for count in NUM_BUCKETS:
                spec = iceberg.PartitionSpec.builderFor(schema).bucket("x", count).build()
                equal = iceberg.expressions.Expressions.equal("x", value)
                projected = iceberg.expressions.Projections.inclusive(spec).project(equal)
                buckets[count] = projected.literal().value()
            yield {"type": name, "value": text, "buckets": buckets}


def write_expected(spark: Any, name: str, query: str, folder: Path) -> None:
    """Write the result of a query to one Parquet file."""
    partial = folder / "partial"
    spark.sql(query).coalesce(1).write.parquet(f"file:{partial}")
    [part] = partial.glob("*.parquet")
    part.rename(folder / f"{name}.parquet")
    shutil.rmtree(partial)


def write_all(spark: Any, expected: Path) -> None:
    """Write all tables, and the rows that Spark reads from them."""
    spark.sql(f"CREATE NAMESPACE {CATALOG}.{NAMESPACE}")
    for name, statements in TABLES.items():
        print(name, flush=True)
        for statement in statements:
            spark.sql(statement.format(table=f"{CATALOG}.{NAMESPACE}.{name}"))
        if name in BY_JAVA:
            BY_JAVA[name](spark)
        write_expected(spark, name, f"SELECT * FROM {CATALOG}.{NAMESPACE}.{name}", expected)
    for name, query in EXPECTED.items():
        write_expected(spark, name, query, expected)


def pack(table: Path, archive: Path) -> None:
    """Put the files of a table's newest metadata into a zip, so that a table is one file."""
    *superseded, _ = sorted(table.glob("metadata/*.metadata.json"))
    files = {*filter(Path.is_file, table.rglob("*"))} - {*superseded, *table.rglob(".*")}
    with ZipFile(archive, "w", ZIP_DEFLATED) as packed:
        for file in sorted(files):
            packed.write(file, file.relative_to(table))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the Iceberg tables of this folder.")
    parser.parse_args()
    fetch(ICEBERG_SPARK)
    WAREHOUSE.mkdir()  # never among the files of an earlier run
    try:
        expected = WAREHOUSE / "expected"
        expected.mkdir()
        spark = start_spark(WAREHOUSE)
        vectors = [*describe_buckets(spark)]
        write_all(spark, expected)
        spark.stop()
        for name in ("tables", "expected"):
            shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / "tables").mkdir()
        for table in (WAREHOUSE / NAMESPACE).iterdir():
            pack(table, HERE / "tables" / f"{table.name}.zip")
        shutil.copytree(expected, HERE / "expected", ignore=shutil.ignore_patterns(".*"))
        lines = ",\n".join(json.dumps(vector) for vector in vectors)
        (HERE / "bucket_vectors.json").write_text(f"[\n{lines}\n]\n")
    finally:
        shutil.rmtree(WAREHOUSE)


if __name__ == "__main__":
    main()
