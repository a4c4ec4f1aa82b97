"""Holds the SQL by which `write_tables.py` writes the tables, by the table's name.

`{table}` stands for the table. Rows are functions of `id`, so that each run writes the same ones.
"""

MERGE_ON_READ = (
    "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
    "'write.merge.mode'='merge-on-read'"
)
# Some hundred rows would be one row group with one page otherwise.
SMALL_GROUPS = (
    "'write.parquet.row-group-size-bytes'='1024', "
    "'write.parquet.row-group-check-min-record-count'='50', "
    "'write.parquet.row-group-check-max-record-count'='50', "
    "'write.parquet.page-row-limit'='20'"
)
EVENTS = "(request_id BIGINT, user_id BIGINT, label INT, note STRING)"


def insert_events(start: int, end: int) -> str:
    """Return the statement that inserts the events with the ids from start to before end."""
    return f"""INSERT INTO {{table}} SELECT id, id * 7919 % 97, CAST(id % 3 = 0 AS INT),
        IF(id % 7 = 0, NULL, concat('note ', id % 11)) FROM range({start}, {end})"""


TABLES: dict[str, list[str]] = {
    "all_types": [
        """CREATE TABLE {table} (id BIGINT, a_boolean BOOLEAN, an_int INT, a_long BIGINT,
            a_float FLOAT, a_double DOUBLE, a_decimal DECIMAL(9, 2), a_long_decimal DECIMAL(18, 4),
            a_wide_decimal DECIMAL(38, 10), a_date DATE, a_timestamp TIMESTAMP,
            a_local_timestamp TIMESTAMP_NTZ, a_string STRING, a_binary BINARY,
            a_list ARRAY<BIGINT>, a_float_list ARRAY<FLOAT>, a_struct STRUCT<x: INT, y: STRING>,
            structs ARRAY<STRUCT<x: INT, y: STRING>>) USING iceberg""",
        """INSERT INTO {table} SELECT id, id % 2 = 0, CAST(id AS INT) - 5, id * 1000000007,
            CAST(id AS FLOAT) / 4, id / 8D, CAST(id * 1.25 AS DECIMAL(9, 2)),
            CAST(id * -1234567.8901 AS DECIMAL(18, 4)),
            CAST(id AS DECIMAL(38, 10)) * CAST(100000000000000000000 AS DECIMAL(21, 0)),
            date_add(DATE'1969-12-30', CAST(id AS INT)),
            timestamp_micros(1700000000123456 + id * 3600000001),
            CAST(timestamp_micros(-5 + id) AS TIMESTAMP_NTZ), concat('text ', id),
            encode(concat('bytes ', id), 'UTF-8'), sequence(0, id), array(CAST(id AS FLOAT), 0.5F),
            struct(CAST(id AS INT), concat('y', id)),
            transform(sequence(0, id % 3), n -> struct(CAST(n AS INT), concat('y', n)))
            FROM range(0, 10)""",
        """INSERT INTO {table} VALUES (10, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)""",
        """INSERT INTO {table} SELECT 11, false, 0, 0, 0, 0, 0, 0, 0, DATE'2026-01-01',
            TIMESTAMP'2026-01-01', TIMESTAMP_NTZ'2026-01-01', '', encode('', 'UTF-8'),
            CAST(array() AS ARRAY<BIGINT>), array(CAST(NULL AS FLOAT)),
            struct(CAST(NULL AS INT), CAST(NULL AS STRING)),
            array(CAST(NULL AS STRUCT<x: INT, y: STRING>))""",
    ],
    "v1": [
        """CREATE TABLE {table} (request_id BIGINT, day DATE, price DECIMAL(9, 2), country STRING)
            USING iceberg PARTITIONED BY (day) TBLPROPERTIES ('format-version'='1')""",
        *(
            f"""INSERT INTO {{table}} SELECT id, date_add(DATE'2026-01-01', CAST(id % 3 AS INT)),
                CAST(id * 0.5 AS DECIMAL(9, 2)), IF(id % 5 = 0, NULL, concat('c', id % 4))
                FROM range({start}, {start + 50})"""
            for start in (0, 50)
        ),
    ],
    # Format 1 keeps a removed partition field, with the transform `void`.
    "v1_void_partition": [
        f"""CREATE TABLE {{table}} {EVENTS} USING iceberg
            PARTITIONED BY (label, bucket(2, user_id)) TBLPROPERTIES ('format-version'='1')""",
        insert_events(0, 20),
        "ALTER TABLE {table} DROP PARTITION FIELD label",
        insert_events(20, 40),
    ],
    "v2_position_deletes": [
        f"""CREATE TABLE {{table}} {EVENTS} USING iceberg PARTITIONED BY (bucket(4, user_id))
            TBLPROPERTIES ('format-version'='2', {MERGE_ON_READ}, {SMALL_GROUPS})""",
        insert_events(0, 600),
        insert_events(600, 800),
        "DELETE FROM {table} WHERE request_id % 10 = 3",
        "DELETE FROM {table} WHERE request_id BETWEEN 200 AND 290",
        "UPDATE {table} SET label = 9 WHERE request_id % 100 = 50",
        insert_events(800, 900),
    ],
    "shared_delete_file": [
        f"""CREATE TABLE {{table}} {EVENTS} USING iceberg TBLPROPERTIES ('format-version'='2',
            'write.delete.granularity'='partition', {MERGE_ON_READ})""",
        *(insert_events(start, start + 20) for start in range(0, 160, 20)),
        "DELETE FROM {table} WHERE request_id % 5 = 0",
    ],
    "v3_deletion_vectors": [
        f"""CREATE TABLE {{table}} {EVENTS} USING iceberg PARTITIONED BY (bucket(4, user_id))
            TBLPROPERTIES ('format-version'='3', {MERGE_ON_READ}, {SMALL_GROUPS})""",
        insert_events(0, 600),
        insert_events(600, 800),
        "DELETE FROM {table} WHERE request_id % 10 = 3",
        "DELETE FROM {table} WHERE request_id BETWEEN 200 AND 290",
        "UPDATE {table} SET label = 9 WHERE request_id % 100 = 50",
        insert_events(800, 900),
    ],
    # Two columns more: write_tables.py adds them.
    "v3_default_values": [
        """CREATE TABLE {table} (id BIGINT, amount BIGINT) USING iceberg
            TBLPROPERTIES ('format-version'='3')""",
        "INSERT INTO {table} SELECT id, id * 10 FROM range(0, 4)",
    ],
    # write_tables.py deletes the rows with label 1.
    "equality_deletes": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg TBLPROPERTIES ('format-version'='2')",
        insert_events(0, 20),
    ],
    "evolution": [
        """CREATE TABLE {table} (id BIGINT, clicks INT, score FLOAT, price DECIMAL(9, 2),
            country STRING, first STRING, second STRING, place STRUCT<x: INT, y: STRING>)
            USING iceberg""",
        """INSERT INTO {table} SELECT id, CAST(id AS INT), CAST(id AS FLOAT) / 2,
            CAST(id * 0.5 AS DECIMAL(9, 2)), concat('old ', id), concat('first ', id),
            concat('second ', id), struct(CAST(id AS INT), concat('y', id)) FROM range(0, 10)""",
        "ALTER TABLE {table} ALTER COLUMN clicks TYPE BIGINT",
        "ALTER TABLE {table} ALTER COLUMN score TYPE DOUBLE",
        "ALTER TABLE {table} ALTER COLUMN price TYPE DECIMAL(18, 2)",
        """INSERT INTO {table} SELECT id, id * 4294967296, id / 3D, id * 12345678901.25,
            concat('old ', id), concat('first ', id), concat('second ', id),
            struct(CAST(id AS INT), concat('y', id)) FROM range(10, 20)""",
        # Rows written before have no value of the new column, although its name is in their files.
        "ALTER TABLE {table} DROP COLUMN country",
        "ALTER TABLE {table} ADD COLUMN country STRING",
        # Two columns swap their names.
        "ALTER TABLE {table} RENAME COLUMN first TO other",
        "ALTER TABLE {table} RENAME COLUMN second TO first",
        "ALTER TABLE {table} RENAME COLUMN other TO second",
        "ALTER TABLE {table} RENAME COLUMN place.x TO z",
        "ALTER TABLE {table} ADD COLUMN place.x DOUBLE",
        "ALTER TABLE {table} ALTER COLUMN score FIRST",
        "ALTER TABLE {table} ALTER COLUMN id AFTER price",
        "ALTER TABLE {table} ADD COLUMN added INT AFTER score",
        """INSERT INTO {table} (id, clicks, score, price, country, first, second, place, added)
            SELECT id, id, id / 3D, id, concat('new ', id), concat('first ', id),
            concat('second ', id), struct(CAST(id AS INT), concat('y', id), id / 2D),
            CAST(id AS INT) FROM range(20, 30)""",
    ],
    "bucket_4_to_8": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg PARTITIONED BY (bucket(4, user_id))",
        insert_events(0, 80),
        "ALTER TABLE {table} RENAME COLUMN user_id TO member_id",
        "ALTER TABLE {table} REPLACE PARTITION FIELD user_id_bucket WITH bucket(8, member_id)",
        insert_events(80, 160),
        "ALTER TABLE {table} DROP COLUMN note",
        "ALTER TABLE {table} ADD COLUMN note STRING",
        insert_events(160, 200),
    ],
    "bucketed_later": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg",
        insert_events(0, 40),
        "ALTER TABLE {table} ADD PARTITION FIELD bucket(4, user_id)",
        insert_events(40, 80),
    ],
    "hidden_partitions": [
        """CREATE TABLE {table} (event_time TIMESTAMP, user_id BIGINT, country STRING,
            amount DOUBLE) USING iceberg
            PARTITIONED BY (days(event_time), bucket(2, user_id), truncate(2, country))""",
        """INSERT INTO {table} SELECT timestamp_seconds(1767225600 + id * 1699), id % 13,
            concat(IF(id % 2 = 0, 'de', 'fr'), id % 5), id / 4D FROM range(0, 150)""",
        "INSERT INTO {table} VALUES (NULL, NULL, NULL, -1D), (NULL, 1, 'd', -2D)",
    ],
    "null_keys": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg PARTITIONED BY (bucket(4, user_id))",
        """INSERT INTO {table} SELECT id, IF(id % 6 = 0, NULL, id % 20), CAST(id % 3 = 0 AS INT),
            NULL FROM range(0, 60)""",
    ],
    "null_keys_side": [
        """CREATE TABLE {table} (userId BIGINT, feature DOUBLE) USING iceberg
            PARTITIONED BY (bucket(6, userId))""",
        "INSERT INTO {table} SELECT id, id / 2D FROM range(0, 15)",
        "INSERT INTO {table} VALUES (NULL, -1D), (NULL, -2D)",
    ],
    "snapshots": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg",
        insert_events(0, 10),
        "ALTER TABLE {table} CREATE TAG first",
        insert_events(10, 20),
        "ALTER TABLE {table} CREATE BRANCH audit",
        "ALTER TABLE {table} RENAME COLUMN note TO remark",
        insert_events(20, 30).replace("{table}", "{table}.branch_audit"),
        "DELETE FROM {table} WHERE request_id < 5",
    ],
    "compacted": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg PARTITIONED BY (bucket(2, user_id))",
        *(insert_events(start, start + 10) for start in range(0, 40, 10)),
        "ALTER TABLE {table} CREATE TAG before",
        """CALL lake.system.rewrite_data_files(table => 'spark.compacted',
            options => map('rewrite-all', 'true'))""",
    ],
    "sorted": [
        f"CREATE TABLE {{table}} {EVENTS} USING iceberg PARTITIONED BY (bucket(4, user_id))",
        "ALTER TABLE {table} WRITE ORDERED BY user_id, request_id",
        insert_events(0, 200),
    ],
}

# More queries, by the name of the file with their rows.
EXPECTED = {
    "snapshots@first": "SELECT * FROM lake.spark.snapshots VERSION AS OF 'first'",
    "snapshots@audit": "SELECT * FROM lake.spark.snapshots VERSION AS OF 'audit'",
    "compacted@before": "SELECT * FROM lake.spark.compacted VERSION AS OF 'before'",
    "null_keys.left": """SELECT m.*, s.feature FROM lake.spark.null_keys m
        LEFT JOIN lake.spark.null_keys_side s ON m.user_id = s.userId""",
    "null_keys.inner": """SELECT m.*, s.feature FROM lake.spark.null_keys m
        JOIN lake.spark.null_keys_side s ON m.user_id = s.userId""",
    "null_keys.anti": """SELECT m.* FROM lake.spark.null_keys m
        LEFT ANTI JOIN lake.spark.null_keys_side s ON m.user_id = s.userId""",
}
