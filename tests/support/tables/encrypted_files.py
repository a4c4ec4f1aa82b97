"""Encrypted Parquet files for tests, whose keys are no secret."""

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class Keys(pe.KmsClient):  # type: ignore[misc]
    """A key service that encrypts nothing."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def write_encrypted(
    path: Path, table: pa.Table, column: str, *, plaintext_footer: bool = True
) -> Path:
    """Write a table with one encrypted column, and perhaps an encrypted footer."""
    config = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": [column]}, plaintext_footer=plaintext_footer
    )
    factory = pe.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return path
